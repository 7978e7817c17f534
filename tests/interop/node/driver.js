// The ali-ons client of 4.x, driven by tests/interop/grpc5/driver.py, which says what the lines mean.
'use strict';

const { createInterface } = require('node:readline');
const { Consumer, Message, Producer } = require('ali-ons');

const quiet = () => {};
const logger = { debug: quiet, info: quiet, warn: quiet, error: quiet };
const producers = new Map();

function say(said) {
  process.stdout.write(`${JSON.stringify(said)}\n`);
}

// A client that shares queues every 300 ms instead of every 10 to 30 s.
function options(said, more) {
  const often = { pollNameServerInteval: 300, rebalanceInterval: 300, heartbeatBrokerInterval: 300 };
  const account = { accessKeyId: 'key', accessKeySecret: 'secret' };
  return { httpclient: {}, logger, nameSrv: said.endpoint, instanceName: said.name, ...often, ...account, ...more };
}

function facts(message) {
  const properties = message.properties;
  return {
    id: properties.UNIQ_KEY,
    topic: message.topic,
    body: message.body.toString(),
    tag: message.tags ?? '',
    keys: (properties.KEYS ?? '').split(' ').filter(Boolean).sort(),
    properties,
    group: properties.__SHARDINGKEY ?? '',
    at: Number(properties.TIMER_DELIVER_MS ?? 0),
    attempt: message.reconsumeTimes + 1,
  };
}

const calls = {
  async producer(said) {
    const producer = new Producer(options(said, { producerGroup: said.name }));
    await producer.ready();
    producers.set(said.name, producer);
  },
  async send(said) {
    const message = new Message(said.topic, said.tag, said.body);
    if (said.keys.length) message.keys = said.keys;
    if (said.level) message.delayTimeLevel = said.level;
    if (said.at) message.properties.TIMER_DELIVER_MS = String(said.at);
    Object.assign(message.properties, said.properties);
    return { id: (await producers.get(said.name).send(message)).msgId, recall: '' };
  },
  async push(said) {
    const more = { consumerGroup: said.group, consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET' };
    const consumer = new Consumer(options(said, more));
    consumer.on('error', quiet);
    consumer.subscribe(said.topic, said.expression, async message => {
      say({ event: 'consumed', name: said.name, message: facts(message) });
    });
    await consumer.ready();
  },
};

createInterface({ input: process.stdin }).on('line', async line => {
  const said = JSON.parse(line);
  try {
    say({ id: said.id, value: await calls[said.do](said) ?? null });
  } catch (error) {
    say({ id: said.id, error: `${error.name}: ${error.message}` });
  }
}).on('close', () => process.exit(0));
