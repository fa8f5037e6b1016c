"""The quick reader of a scrape gives what prometheus_client's own parser does."""

from prometheus_client.parser import text_string_to_metric_families

from metrics.catalog import CATALOG
from metrics.collector import Exposition, Sample
from tests.kit.scrape import read_samples

AWKWARD = 'a "topic" = {b},\\n c\\\nd'


def test_samples_are_those_of_the_client_library() -> None:
    asked = next(name for name, metric in CATALOG.items() if len(metric.labels) == 1)
    plain = next(name for name, metric in CATALOG.items() if not metric.labels)
    given = [Sample(asked, (AWKWARD,), 1.5), Sample(asked, ("",), 2e20), Sample(plain, (), 3)]
    text = Exposition(lambda: given).render().decode()
    expected = {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert AWKWARD in {key[1] for key in expected if len(key) > 1}
    assert read_samples(text) == expected
