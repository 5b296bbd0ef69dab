"""Follow Weir: every correction, and the newest state of every window, each applied once, in SQLite.

python examples/follow.py KAFKA FILE        Killed anywhere and started again it continues where it was: Kafka may hand
over a message twice, but it has an id and a version, and FILE knows both. Only what is committed is read (the default).
"""

import json
import sqlite3
import sys

from confluent_kafka import Consumer, KafkaException

TABLE = "CREATE TABLE IF NOT EXISTS {} (id TEXT PRIMARY KEY, version INTEGER, data TEXT)"
APPLY = """INSERT INTO {0} VALUES (:id, :version, :data) ON CONFLICT (id) DO UPDATE
           SET version = excluded.version, data = excluded.data WHERE excluded.version > {0}.version"""
TOPICS = ["windows", "corrections"]

database = sqlite3.connect(sys.argv[2])
for topic in TOPICS:
    database.execute(TABLE.format(topic))
database.execute("CREATE TABLE IF NOT EXISTS done (topic TEXT, id TEXT, version INTEGER)")
# Its name within the group lets a new process take over from a killed one at once.
group = {"group.id": "follow", "group.instance.id": "follow-1", "enable.auto.commit": False}
consumer = Consumer({"bootstrap.servers": sys.argv[1], "auto.offset.reset": "earliest", **group})
consumer.subscribe(TOPICS)
while True:
    messages = consumer.consume(500, timeout=1)
    with database:  # all of them, or none
        for message in messages:
            if message.error():
                raise KafkaException(message.error())
            data = json.loads(message.value())["data"]
            row = {"topic": message.topic(), "id": data["id"], "version": data["version"], "data": json.dumps(data)}
            if database.execute(APPLY.format(message.topic()), row).rowcount:
                # It is news: here belongs what you do with it, in this transaction.
                database.execute("INSERT INTO done VALUES (:topic, :id, :version)", row)
    if messages:
        consumer.commit(asynchronous=False)
