"""Source and sink with TLS and an account that may do no more than they need."""

import pytest

from kerolox.client import Credentials
from kerolox.testing import LocalBroker
from tests.support.servers.tls import Authority

ACCOUNTS = """\
accounts:
- accessKey: operator
  secretKey: operator-secret
  admin: true
- accessKey: pipeline
  secretKey: pipeline-secret
  defaultTopicPerm: DENY
  defaultGroupPerm: DENY
  topicPerms: [Orders=PUB|SUB, Files=PUB|SUB, RMQ_SYS_TRANS_HALF_TOPIC=PUB|SUB]
  groupPerms: [spark-rocketmq=SUB, TOOLS_CONSUMER=SUB]
"""


@pytest.fixture(scope="module")
def authority(tmp_path_factory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def name_server(authority):
    certificate, key = authority.files("127.0.0.1")
    accounts = authority.folder / "plain_acl.yml"
    accounts.write_text(ACCOUNTS)
    settings = {
        "tls.server.mode": "enforcing",
        "tls.server.certPath": str(certificate),
        "tls.server.keyPath": str(key),
        "aclEnable": "true",
        "aclFile": str(accounts),
    }
    operator = Credentials("operator", "operator-secret")
    with LocalBroker(settings=settings, credentials=operator) as broker:
        broker.create_topic("Orders")
        broker.create_topic("Files")
        yield broker.name_server


@pytest.fixture
def given(name_server, authority):
    account = {"accessKey": "pipeline", "secretKey": "pipeline-secret"}
    return {"nameServer": name_server, "tlsCaFile": str(authority.ca), **account}


def test_rows_are_written_and_read_with_tls_and_an_account(spark, given, tmp_path):
    rows = spark.range(0, 200, 1, 2).selectExpr("CAST(id AS STRING) AS body")
    writer = rows.write.format("rocketmq").mode("append").options(topic="Orders", **given)
    writer.save()
    exactly = {"transactional": "true", "transactionLocation": str(tmp_path)}
    writer.options(transactionId="once", **exactly).save()
    read = spark.read.format("rocketmq").options(subscribe="Orders", **given).load()
    found = sorted(int(bytes(row.body)) for row in read.collect())
    assert found == sorted([*range(200), *range(200)])


@pytest.fixture
def named(name_server, authority):
    """The same, in files of RocketMQ."""
    tools, tls = authority.folder / "tools.yml", authority.folder / "tls.properties"
    tools.write_text("accessKey: pipeline\nsecretKey: pipeline-secret\n")
    tls.write_text(f"tls.client.trustCertPath={authority.ca}\n")
    files = {"credentialsFile": str(tools), "tlsConfigFile": str(tls)}
    return {"nameServer": name_server, **files}


def test_account_and_tls_of_rocketmqs_files_write_and_read(spark, named, tmp_path):
    rows = spark.range(0, 60, 1, 2).selectExpr("concat('f', CAST(id AS STRING)) AS body")
    writer = rows.write.format("rocketmq").mode("append").options(topic="Files", **named)
    writer.save()
    exactly = {"transactional": "true", "transactionLocation": str(tmp_path / "sink")}
    writer.options(transactionId="files", **exactly).save()
    options = {"subscribe": "Files", **named}
    read = spark.read.format("rocketmq").options(**options).load()
    assert len(read.collect()) == 120
    stream = spark.readStream.format("rocketmq").options(**options, startingOffsets="earliest")
    query = (
        stream.load()
        .writeStream.format("memory")
        .queryName("files")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    assert spark.table("files").count() == 120


def test_no_plan_and_no_checkpoint_shows_a_secret(spark, given, named, tmp_path):
    for options in (given, named):
        read = spark.read.format("rocketmq").options(subscribe="Orders", **options).load()
        plan = read._jdf.queryExecution()
        shown = [plan.toString(), plan.explainString(plan_mode(spark, "extended"))]
        shown.append(plan.explainString(plan_mode(spark, "formatted")))
        assert all("pipeline-secret" not in each for each in shown)
    checkpoint = tmp_path / "checkpoint"
    query = (
        spark.readStream.format("rocketmq")
        .options(subscribe="Orders", startingOffsets="earliest", **given)
        .load()
        .select("body")
        .writeStream.format("rocketmq")
        .options(topic="Files", checkpointLocation=str(checkpoint), **given)
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    assert "pipeline-secret" not in query._jsq.explainInternal(True)
    files = [each for each in checkpoint.rglob("*") if each.is_file()]
    assert files
    assert all(b"pipeline-secret" not in each.read_bytes() for each in files)


def plan_mode(spark, name):
    return spark._jvm.org.apache.spark.sql.execution.ExplainMode.fromString(name)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"secretKey": "another-secret"}, "refuses accessKey pipeline|signature"),
        ({"consumerGroup": "others"}, "others"),
        ({"tlsCaFile": None}, "certificate"),
    ],
)
def test_who_may_not_read_is_told_why(spark, given, wrong, says):
    options = {name: text for name, text in {**given, **wrong}.items() if text is not None}
    options |= {"subscribe": "Orders", "tls": "true", "pollTimeoutMs": "3000"}
    frame = spark.read.format("rocketmq").options(**options).load()
    with pytest.raises(Exception, match="(?i)" + says) as caught:
        frame.collect()
    assert "pipeline-secret" not in str(caught.value)
