"""Rights by the broker's own words, and the commands that give them."""

from typing import Any

import pytest

from protocol.control import TopicRights
from proxy.config.model import ListenerConfig
from proxy.doctor.rights import (
    DESCRIBE,
    DESCRIBE_CONFIGS,
    NOT_SAID,
    READ,
    build_command,
    judge_log_dirs,
    judge_node,
    judge_tokens,
    judge_topics,
)

EVERYTHING = 1 << READ | 1 << DESCRIBE | 1 << DESCRIBE_CONFIGS


def listener(**keys: Any) -> ListenerConfig:
    tree = {"listen": ":9092", "upstream": "b:9093"} | keys
    return ListenerConfig.model_validate(tree, by_alias=True, by_name=False)


def named(username: str) -> ListenerConfig:
    own = {"mechanism": "PLAIN", "username": username, "passwordFile": "/p"}
    return listener(upstreamCredentials=own)


def test_all_rights_on_all_topics() -> None:
    topics = [TopicRights(0, "a", False, EVERYTHING), TopicRights(0, "b", False, EVERYTHING)]
    (line,) = judge_topics("r", listener(), topics)
    assert line.status == "ok" and "all 2 topics" in line.text


def test_each_missing_operation_names_its_topics_and_the_command() -> None:
    topics = [TopicRights(0, f"t{n}", False, 1 << DESCRIBE) for n in range(7)]
    topics.append(TopicRights(0, "__consumer_offsets", True, 0))
    read, configs = judge_topics("r", named("forebay"), topics)
    assert read.status == configs.status == "warn"
    assert "Read is missing on 7 of 7 topics (t0, t1, t2, t3, t4, ...)" in read.text
    assert "DescribeConfigs is missing" in configs.text
    assert read.remedy == (
        "kafka-acls.sh --bootstrap-server b:9093 --add --allow-principal 'User:forebay'"
        " --operation Describe --operation Read --operation DescribeConfigs --topic '*'"
    )


@pytest.mark.parametrize(
    ("topics", "status"),
    [
        ([], "warn"),
        ([TopicRights(0, "__consumer_offsets", True, EVERYTHING)], "warn"),
        ([TopicRights(29, "secret", False, NOT_SAID)], "warn"),
        ([TopicRights(0, "a", False, NOT_SAID)], "skip"),
    ],
)
def test_no_topic_and_no_word(topics: list[TopicRights], status: str) -> None:
    (line,) = judge_topics("r", listener(), topics)
    assert line.status == status


def test_rights_on_the_cluster() -> None:
    assert judge_node("r", listener(), True).status == "ok"
    assert judge_log_dirs("r", listener(), True).status == "ok"
    node, log_dirs = judge_node("r", listener(), False), judge_log_dirs("r", listener(), False)
    assert node.status == log_dirs.status == "warn"
    assert node.remedy.endswith("'User:ANONYMOUS' --operation DescribeConfigs --cluster")
    assert log_dirs.remedy.endswith("'User:ANONYMOUS' --operation Describe --cluster")


def test_a_principal_that_only_the_broker_knows_is_left_open() -> None:
    token = listener(upstreamCredentials={"mechanism": "OAUTHBEARER", "tokenFile": "/t"})
    certificate = listener(upstreamTls={"enabled": True, "certificateFile": "/c", "keyFile": "/k"})
    for one in (token, certificate):
        assert "'User:PRINCIPAL'" in build_command(one, (READ,), "--topic '*'")


def test_tokens_cannot_be_asked_for_but_the_command_is_ready() -> None:
    line = judge_tokens("r", named("forebay"))
    assert line.status == "skip"
    assert line.remedy.endswith(
        "--allow-principal 'User:forebay' --operation CreateTokens --user-principal '*'"
    )
