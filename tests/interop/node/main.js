// What a Node.js application does with the ali-ons 3.12 client: node main.js NAMESRV [ACCESSKEY SECRETKEY SCENARIO ...].
// All scenarios run at the same time, each with topics and groups of its own, since most of them wait.
// Prints one line per scenario: "scenario", its name, "ok" or what went wrong, separated by tabs.
//
// The broker must have enablePropertyFilter=true, accessMessageInMemoryMaxRatio=0 (a group without offset then
// starts where the client wants) and delay levels of about a second.
'use strict';

const { Consumer, Message, Producer } = require('ali-ons');

const [nameSrv, accessKeyId = 'key', accessKeySecret = 'secret', ...chosen] = process.argv.slice(2);
const SECONDS_MAX = 60;
const quiet = () => {};
const logger = { debug: quiet, info: quiet, warn: quiet, error: quiet };

let count = 0;
let producer;

// A client that asks for routes, sends heartbeats to brokers and shares queues every 300 ms instead of every 10 to 30 s.
function options(more) {
  return {
    httpclient: {}, // for the cloud's address service only
    accessKeyId,
    accessKeySecret,
    nameSrv,
    logger,
    instanceName: `instance${count++}-${process.pid}`,
    pollNameServerInteval: 300,
    rebalanceInterval: 300,
    heartbeatBrokerInterval: 300,
    ...more,
  };
}

function check(fact, what) {
  if (!fact) throw new Error(what);
}

const sleep = ms => new Promise(resolve => setTimeout(resolve, ms));

async function eventually(fact, what) {
  const deadline = Date.now() + SECONDS_MAX * 1000;
  while (!fact()) {
    check(Date.now() < deadline, `never: ${what()}`);
    await sleep(10);
  }
}

async function put(topic, tags, body, fill = quiet) {
  const message = new Message(topic, tags, body);
  fill(message);
  const result = await producer.send(message);
  check(result.sendStatus === 'SEND_OK', JSON.stringify(result));
  return result;
}

// A running consumer, and the messages that it gets.
async function consume(group, topic, expression, more = {}, handle = async () => {}) {
  const got = [];
  const consumer = new Consumer(options({ consumerGroup: group, consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET', ...more }));
  consumer.on('error', error => logger.warn(error));
  consumer.subscribe(topic, expression, async message => {
    got.push(message);
    return await handle(message);
  });
  await consumer.ready();
  return { consumer, got };
}

const bodies = got => [...new Set(got.map(message => message.body.toString()))].sort().join(' ');

// Receives a topic's messages until the bodies are these; more than those is an error.
async function expectBodies(group, topic, expression, expected, more) {
  const { consumer, got } = await consume(group, topic, expression, more);
  const wanted = [...expected].sort().join(' ');
  await eventually(() => bodies(got).length >= wanted.length, () => `${bodies(got)} instead of ${wanted}`);
  await consumer.close();
  check(bodies(got) === wanted, `saw ${bodies(got)}`);
  return got;
}

const scenarios = {
  async send() {
    const first = await put('NodeSend', 'T', 'one');
    check(first.msgId.length === 32 && first.queueOffset === 0, JSON.stringify(first));
    const queues = new Set();
    for (let i = 0; i < 8; i++) queues.add((await put('NodeSend', 'T', `m${i}`)).messageQueue.queueId);
    check(queues.size === 4, `queues ${[...queues]}`);
  },

  async properties() {
    await put('NodeProps', 'T', 'body', message => {
      message.keys = ['k1', 'k2'];
      message.properties.region = 'eu-1';
      message.properties.name = '\u7f8a \u20ac';
    });
    const [message] = await expectBodies('node-props', 'NodeProps', '*', ['body']);
    check(String(message.keys).trim() === 'k1 k2' && message.tags === 'T', JSON.stringify(message.properties));
    check(message.properties.region === 'eu-1' && message.properties.name === '\u7f8a \u20ac', JSON.stringify(message.properties));
  },

  async compressed() {
    const body = 'compress me '.repeat(3000);
    await put('NodeBig', 'T', body);
    await expectBodies('node-big', 'NodeBig', '*', [body]);
  },

  async tags() {
    for (let i = 0; i < 20; i++) await put('NodeTags', 'ABCD'[i % 4], `${'ABCD'[i % 4]}${i}`);
    const expected = [0, 2, 4, 6, 8, 10, 12, 14, 16, 18].map(i => `${'ABCD'[i % 4]}${i}`);
    await expectBodies('node-tags', 'NodeTags', 'A || C', expected);
  },

  async sql92() {
    for (let i = 0; i < 20; i++) await put('NodeSql', 'T', `m${i}`, message => { message.properties.price = String(i); });
    const expression = { expressionType: 'SQL92', subString: 'price BETWEEN 3 AND 5 OR price IN (\'17\')' };
    await expectBodies('node-sql', 'NodeSql', expression, ['m3', 'm4', 'm5', 'm17']);
  },

  async delay() {
    const arrived = {};
    await put('NodeDelay', 'T', 'now');
    const { consumer } = await consume('node-delay', 'NodeDelay', '*', {}, async message => {
      arrived[message.body.toString()] = Date.now();
    });
    const due = {};
    for (const level of [1, 4, 18]) {
      due[`level${level}`] = Date.now() + (level === 18 ? 3000 : 1000);
      await put('NodeDelay', 'T', `level${level}`, message => { message.delayTimeLevel = level; });
    }
    await eventually(() => Object.keys(arrived).length === 4, () => Object.keys(arrived));
    await consumer.close();
    for (const body of Object.keys(due)) check(arrived[body] >= due[body], `${body} came ${due[body] - arrived[body]} ms early`);
  },

  async timed() {
    const arrived = {};
    await put('NodeTimed', 'T', 'now');
    const { consumer } = await consume('node-timed', 'NodeTimed', '*', {}, async message => {
      arrived[message.body.toString()] = Date.now();
    });
    const now = Date.now();
    const due = { TIMER_DELIVER_MS: now + 2300, TIMER_DELAY_MS: now + 1700, TIMER_DELAY_SEC: now + 2000 };
    const given = { TIMER_DELIVER_MS: now + 2300, TIMER_DELAY_MS: 1700, TIMER_DELAY_SEC: 2 };
    for (const name of Object.keys(given)) {
      await put('NodeTimed', 'T', name, message => { message.properties[name] = String(given[name]); });
    }
    await eventually(() => Object.keys(arrived).length === 4, () => Object.keys(arrived));
    await consumer.close();
    for (const body of Object.keys(due)) check(arrived[body] >= due[body], `${body} came ${due[body] - arrived[body]} ms early`);
  },

  async retry_to_dlq() {
    await put('NodeRetry', 'T', 'r0');
    await put('NodeRetry', 'T', 'r1');
    const tries = [];
    const { consumer } = await consume('node-retry', 'NodeRetry', '*', { maxReconsumeTimes: 2 }, async message => {
      tries.push(`${message.body}-${message.reconsumeTimes}`);
      if (message.body.toString() === 'r1' || message.reconsumeTimes === 0) throw new Error('not yet');
    });
    await eventually(() => tries.includes('r1-2'), () => tries);
    await expectBodies('node-dead', '%DLQ%node-retry', '*', ['r1']);
    await consumer.close();
    check(tries.sort().join(' ') === 'r0-0 r0-1 r1-0 r1-1 r1-2', tries);
  },

  async broadcast() {
    await put('NodeBroadcast', 'other', 'the topic exists');
    const more = { isBroadcast: true };
    const members = [
      await consume('node-broadcast', 'NodeBroadcast', 'T', more),
      await consume('node-broadcast', 'NodeBroadcast', 'T', more),
    ];
    for (let i = 0; i < 4; i++) await put('NodeBroadcast', 'T', `b${i}`);
    await eventually(() => members.every(({ got }) => bodies(got) === 'b0 b1 b2 b3'), () => members.map(({ got }) => bodies(got)));
    for (const { consumer } of members) await consumer.close();
  },

  async two_members() {
    await put('NodeShare', 'other', 'the topic exists');
    const members = [await consume('node-share', 'NodeShare', 'T'), await consume('node-share', 'NodeShare', 'T')];
    let sent = 0;
    await eventually(() => {
      put('NodeShare', 'T', `s${sent++}`).catch(logger.warn);
      return members.every(({ got }) => got.length > 0);
    }, () => members.map(({ got }) => got.length));
    await members[0].consumer.close();
    for (let i = 0; i < 8; i++) await put('NodeShare', 'T', `after${i}`);
    await eventually(() => [0, 1, 2, 3, 4, 5, 6, 7].every(i => members.some(({ got }) => bodies(got).includes(`after${i}`))), () => bodies(members[1].got));
    await members[1].consumer.close();
  },

  async from_last() {
    for (let i = 0; i < 8; i++) await put('NodeLast', 'T', `old${i}`);
    const { consumer, got } = await consume('node-last', 'NodeLast', '*', { consumeFromWhere: 'CONSUME_FROM_LAST_OFFSET' });
    await eventually(() => [...consumer.processQueueTable.keys()].filter(key => key.includes('NodeLast')).length === 4, () => 'four queues');
    await sleep(500);
    for (let i = 0; i < 4; i++) await put('NodeLast', 'T', `new${i}`);
    await eventually(() => bodies(got).includes('new0 new1 new2 new3'), () => bodies(got));
    await consumer.close();
    check(bodies(got) === 'new0 new1 new2 new3', bodies(got));
  },

  async from_timestamp() {
    for (let i = 0; i < 8; i++) await put('NodeTime', 'T', `old${i}`);
    // The client's time has seconds only. The broker takes the message nearest to it: the old ones have to be further
    // away than the sends of the new ones may take.
    const second = Math.floor(Date.now() / 1000) * 1000 + 5000;
    await sleep(second + 10 - Date.now());
    for (let i = 0; i < 8; i++) await put('NodeTime', 'T', `new${i}`);
    const date = new Date(second);
    const digits = [date.getFullYear(), date.getMonth() + 1, date.getDate(), date.getHours(), date.getMinutes(), date.getSeconds()];
    const consumeTimestamp = digits.map(number => String(number).padStart(2, '0')).join('');
    const expected = [0, 1, 2, 3, 4, 5, 6, 7].map(i => `new${i}`);
    await expectBodies('node-time', 'NodeTime', '*', expected, { consumeFromWhere: 'CONSUME_FROM_TIMESTAMP', consumeTimestamp });
  },

  // This client takes no locks: a queue is in order while its member stays.
  async in_order() {
    const sent = {};
    for (let i = 0; i < 40; i++) {
      const { messageQueue, queueOffset } = await put('NodeOrder', 'T', `o${i}`);
      (sent[messageQueue.queueId] = sent[messageQueue.queueId] || []).push(queueOffset);
    }
    const seen = {};
    const { consumer, got } = await consume('node-order', 'NodeOrder', '*', {}, async message => {
      await sleep(Math.random() * 5);
      (seen[message.queueId] = seen[message.queueId] || []).push(message.queueOffset);
    });
    await eventually(() => Object.values(seen).flat().length >= 40, () => bodies(got));
    await consumer.close();
    check(JSON.stringify(seen) === JSON.stringify(sent), `${JSON.stringify(seen)} instead of ${JSON.stringify(sent)}`);
  },

  // Whoever runs this has sent old0 to old7, later0 to later7, and reset the group between.
  async reset_offline() {
    await expectBodies('node-reset', 'NodeReset', '*', [0, 1, 2, 3, 4, 5, 6, 7].map(i => `later${i}`));
  },

  async resumes() {
    for (const round of ['a', 'b']) {
      const expected = [0, 1, 2, 3, 4, 5, 6, 7].map(i => `${round}${i}`);
      for (const body of expected) await put('NodeResume', 'T', body);
      await expectBodies('node-resume', 'NodeResume', '*', expected);
    }
  },
};

// Those that run only where they are asked for, since they need servers of their own.
const onDemand = {
  // The broker takes some requests a second. What it refuses is sent again after a pause.
  async limited() {
    // So many at once, again until some were too many: one after the other, a slow machine sends less than it may.
    const expected = [];
    let refused = 0;
    while (refused === 0) {
      const bodies = Array.from({ length: 60 }, (_, i) => `l${expected.length + i}`);
      expected.push(...bodies);
      await Promise.all(bodies.map(async body => {
        for (let isTaken = false; !isTaken;) {
          try {
            await put('NodeLimited', 'T', body);
            isTaken = true;
          } catch (error) {
            const isBusy = error.name === 'MQClientException' && error.code === 2 && error.message.includes('[RATE_LIMIT]system busy');
            check(isBusy, `${error.name} ${error.code} ${error.message}`);
            refused++;
            await sleep(200);
          }
        }
      }));
    }
    // A consumer whose first requests are refused does not start: not before the account may ask as
    // much again as at its begin (requestBurstMillis).
    await sleep(1000);
    await expectBodies('node-limited', 'NodeLimited', '*', expected);
  },

  async refused() {
    try {
      await put('NodeForbidden', 'T', 'never');
    } catch (error) {
      return; // it does not report why
    }
    check(false, 'it was taken');
  },
};

async function run(name, scenario) {
  const start = Date.now();
  let outcome = 'ok';
  try {
    await scenario();
  } catch (error) {
    outcome = String(error).replace(/[\n\t]/g, ' ').slice(0, 500);
    console.error(error);
  }
  console.error(`${name} took ${Date.now() - start} ms`);
  console.log(`scenario\t${name}\t${outcome}`);
}

async function main() {
  producer = new Producer(options({ producerGroup: 'node-producer' }));
  producer.on('error', error => logger.warn(error));
  await producer.ready();
  const runs = Object.entries({ ...scenarios, ...onDemand }).filter(([name]) => (chosen.length ? chosen.includes(name) : name in scenarios));
  await Promise.all(runs.map(([name, scenario]) => run(name, scenario)));
  process.exit(0);
}

main();
