// The official Node.js client of RocketMQ 5, unmodified, driven by tests/interop/grpc5/driver.py, which says what the
// lines mean.
import { createInterface } from 'node:readline';
import { ConsumeResult, FilterExpression, Producer, PushConsumer, SimpleConsumer } from 'rocketmq-client-nodejs';

const SQL = 2;
const RESOLUTIONS = { commit: 1, rollback: 2 };
const clients = new Map();
const transactions = new Map();
const received = new Map();
const silent = { debug() {}, info() {}, warn() {}, error() {} };
let numbers = 0;

function say(said) {
  process.stdout.write(`${JSON.stringify(said)}\n`);
}

function options(said) {
  const { key, secret } = said;
  const sessionCredentials = key ? { accessKey: key, accessSecret: secret } : undefined;
  // On a busy machine the 3 s of the default are not enough for a start.
  const patient = { requestTimeout: 10_000, logger: silent };
  return { endpoints: said.endpoint, namespace: '', sslEnabled: said.tls, sessionCredentials, ...patient };
}

function consumerOptions(said) {
  const filter = new FilterExpression(said.expression, said.sql ? SQL : undefined);
  return { ...options(said), consumerGroup: said.group, subscriptions: new Map([[said.topic, filter]]) };
}

function facts(message) {
  numbers += 1;
  received.set(numbers, message);
  return {
    n: numbers,
    id: message.messageId,
    topic: message.topic,
    body: message.body.toString(),
    tag: message.tag ?? '',
    keys: [...message.keys].sort(),
    properties: Object.fromEntries(message.properties),
    group: message.messageGroup ?? '',
    at: message.deliveryTimestamp ? message.deliveryTimestamp.getTime() : 0,
    attempt: message.deliveryAttempt,
  };
}

async function started(said, client) {
  await client.startup();
  clients.set(said.name, client);
}

const calls = {
  async producer(said) {
    const checker = {
      async check(message) {
        const body = message.body.toString();
        say({ event: 'checked', name: said.name, body });
        return RESOLUTIONS[body] ?? 0;
      },
    };
    await started(said, new Producer({ ...options(said), topic: said.topics, checker }));
  },
  async send(said) {
    const producer = clients.get(said.name);
    const message = {
      topic: said.topic,
      body: Buffer.from(said.body),
      tag: said.tag || undefined,
      keys: said.keys,
      properties: new Map(Object.entries(said.properties)),
      messageGroup: said.group || undefined,
      deliveryTimestamp: said.at ? new Date(said.at) : undefined,
    };
    const transaction = said.transaction ? producer.beginTransaction() : undefined;
    const receipt = await producer.send(message, transaction);
    transactions.set(said.body, transaction);
    return { id: receipt.messageId, recall: receipt.recallHandle };
  },
  async end(said) {
    await transactions.get(said.body)[said.how]();
  },
  async recall(said) {
    return (await clients.get(said.name).recallMessage(said.topic, said.handle)).messageId;
  },
  async simple(said) {
    await started(said, new SimpleConsumer({ ...consumerOptions(said), awaitDuration: 5000 }));
  },
  async receive(said) {
    return (await clients.get(said.name).receive(said.count, said.invisible * 1000)).map(facts);
  },
  async ack(said) {
    await clients.get(said.name).ack(received.get(said.n));
  },
  async change(said) {
    await clients.get(said.name).changeInvisibleDuration(received.get(said.n), said.seconds * 1000);
  },
  async push(said) {
    const seen = new Map();
    const messageListener = {
      async consume(view) {
        const message = facts(view);
        seen.set(message.id, (seen.get(message.id) ?? 0) + 1);
        say({ event: 'consumed', name: said.name, message });
        const fails = message.body.startsWith('fail') && seen.get(message.id) <= said.failures;
        return fails ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
      },
    };
    await started(said, new PushConsumer({ ...consumerOptions(said), messageListener }));
  },
  async close(said) {
    await clients.get(said.name).shutdown();
  },
};

createInterface({ input: process.stdin }).on('line', async line => {
  const said = JSON.parse(line);
  try {
    say({ id: said.id, value: await calls[said.do](said) ?? null });
  } catch (error) {
    say({ id: said.id, error: `${error.constructor.name}: ${error.message}` });
  }
}).on('close', () => process.exit(0));
process.on('unhandledRejection', error => say({ event: 'unhandled', name: '', error: String(error) }));
