// main.mjs ENDPOINT TOPIC ORDERED DECIDED: sends by gRPC through a proxy. Prints "sent BODY" for each message that the
// proxy took, "decided OUTCOME" for each transaction that was ended, "check BODY" for each that was asked about, and
// "ended". DECIDED has what is committed, what is rolled back is seen nowhere.
import { Producer } from 'rocketmq-client-nodejs';

const [endpoints, topic, ordered, decided] = process.argv.slice(2);
const COMMIT = 1;

const producer = new Producer({
  endpoints,
  checker: {
    async check(message) {
      console.log(`check ${message.body}`);
      return COMMIT;
    },
  },
});

async function send(message, transaction) {
  const receipt = await producer.send({ tag: 'node', ...message, body: Buffer.from(message.body) }, transaction);
  if (!receipt.messageId) {
    throw new Error(`no id: ${message.body}`);
  }
  console.log(`sent ${message.body}`);
}

await producer.startup();
await send({ topic, body: 'plain', keys: ['key'], properties: new Map([['kind', 'plain']]) });
for (let number = 0; number < 4; number++) {
  await send({ topic: ordered, body: `ordered ${number}`, messageGroup: 'one' });
}
for (const outcome of ['commit', 'rollback']) {
  const transaction = producer.beginTransaction();
  await send({ topic: decided, body: outcome }, transaction);
  await transaction[outcome]();
  console.log(`decided ${outcome}`);
}
console.log('ended');
process.exit(0);
