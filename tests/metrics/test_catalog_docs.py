"""The committed page is what the catalog and the schema say."""

from metrics import catalog_docs
from metrics.access_log_schema import LINE_TYPES
from metrics.catalog import CATALOG


def test_the_committed_documentation_is_fresh() -> None:
    assert catalog_docs.main(["--check"]) == 0


def test_check_reports_a_stale_page(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(catalog_docs, "DOCS_PATH", tmp_path / "metrics.md")
    assert catalog_docs.main(["--check"]) == 1
    assert "stale" in capsys.readouterr().err
    assert catalog_docs.main([]) == 0
    assert catalog_docs.main(["--check"]) == 0
    text = (tmp_path / "metrics.md").read_text()
    assert all(f"`{name}`" in text for name in CATALOG)
    assert all(f"`{field.name}`" in text for fields in LINE_TYPES.values() for field in fields)
