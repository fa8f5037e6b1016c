// The programme for KafkaJS: `steps.mjs BOOTSTRAP RUN STEP...` prints one JSON line a step.
import { createRequire } from 'node:module'
import { Client, numbers, sleep, wait } from './client.mjs'
import { plugIn } from './codecs.mjs'
import { START_MS } from './records.mjs'

const { ConfigResourceTypes } = createRequire(import.meta.url)('kafkajs')
const TAIL = 60
const ROUNDS = 16
const [bootstrap, run, ...steps] = process.argv.slice(2)
const client = await new Client(bootstrap, run).start()
const { admin } = client
const nameOf = error => error.type ?? error.cause?.type ?? error.name

async function codec(which) {
  const topic = await client.create(`codec-${which}`)
  const producer = await client.producer()
  const offsets = []
  for (const from of [0, 10, 20]) {
    offsets.push(...(await client.send(producer, topic, 0, numbers(from, from + 10), which)))
  }
  await producer.disconnect()
  return { offsets, records: await client.readAll(topic, 30) }
}

async function seeks() {
  const topic = `${run}-codec-none`
  const ends = await client.ends(topic)
  const reader = await client.read(topic)
  await reader.take(30)
  const seen = { ends, 'from 7': await reader.takeFrom(7, 3), 'back to 2': await reader.takeFrom(2, 2) }
  seen.first = await reader.takeFrom(ends[0], 1)
  reader.seen.length = 0
  reader.consumer.seek({ topic, partition: 0, offset: '1000' })
  await wait('it begins anew', () => reader.seen.some(one => one[1] === 0))
  seen.beyond = 'KafkaJS goes back to the beginning'
  await reader.close()
  return seen
}

async function times() {
  const topic = `${run}-codec-none`
  const seen = { ends: await client.ends(topic) }
  for (const after of [-1, 0, 12_000, 12_001, 99_000]) {
    const [found] = await admin.fetchTopicOffsetsByTimestamp(topic, START_MS + after)
    seen[`at ${after}`] = Number(found.offset)
  }
  return seen
}

async function spread(topic, from, until) {
  const producer = await client.producer()
  for (const number of numbers(from, until)) await client.send(producer, topic, number % 2, [number])
  await producer.disconnect()
}

async function readGroup(topic, group, count) {
  const reader = await client.read(topic, { group })
  const seen = await reader.take(count)
  await reader.commit()
  await reader.close()
  return seen.sort((one, other) => one[0] - other[0] || one[1] - other[1])
}

async function group() {
  const topic = await client.create('group-classic', 2)
  const name = `${run}-group-classic`
  await spread(topic, 0, 10)
  const seen = { first: await readGroup(topic, name, 10), committed: await client.committed(name, topic) }
  await spread(topic, 10, 14)
  seen.second = await readGroup(topic, name, 4)
  seen['committed again'] = await client.committed(name, topic)
  const members = [await client.read(topic, { group: name }), await client.read(topic, { group: name })]
  await wait('two members share the partitions', () => members.every(one => one.assigned === 1))
  seen.shared = [1, 1]
  for (const one of members) await one.close()
  return seen
}

async function transactions() {
  const topic = await client.create('txn')
  const group = `${run}-txn-group`
  const producer = await client.producer(`${run}-txn`)
  for (const from of [0, 3, 6]) {
    const transaction = await producer.transaction()
    await client.send(transaction, topic, 0, numbers(from, from + 3))
    if (from === 6) {
      const topics = [{ topic, partitions: [{ partition: 0, offset: '7' }] }]
      await transaction.sendOffsets({ consumerGroupId: group, topics })
    }
    await (from === 3 ? transaction.abort() : transaction.commit())
  }
  const seen = { committed: await client.readAll(topic, 6, true), uncommitted: await client.readAll(topic, 9) }
  seen.group = await client.committed(group, topic)
  seen.open = await open(producer, topic)
  const fencing = await client.producer(`${run}-txn`)
  await (await fencing.transaction()).abort()
  seen.fenced = await fenced(producer, topic)
  await fencing.disconnect()
  await producer.disconnect()
  return seen
}

// What read_committed sees of a transaction while it is open, and afterwards.
async function open(producer, topic) {
  const reader = await client.read(topic, { committed: true })
  await reader.take(6)
  const transaction = await producer.transaction()
  await client.send(transaction, topic, 0, [9, 10])
  await sleep(1000)
  const early = reader.seen.length
  await transaction.commit()
  const after = await reader.take(2)
  await reader.close()
  return [early, after]
}

async function fenced(producer, topic) {
  try {
    const transaction = await producer.transaction()
    await client.send(transaction, topic, 0, [11])
    await transaction.commit()
    return 'not fenced'
  } catch (error) {
    return nameOf(error)
  }
}

async function tail(name, committed) {
  const topic = await client.create(name)
  const producer = await client.producer()
  await client.send(producer, topic, 0, numbers(0, 5))
  const reading = client.readAll(topic, committed ? 5 + 2 * (ROUNDS - ROUNDS / 4) : 5 + TAIL, committed)
  await sleep(1500)
  if (committed) {
    await commitRounds(topic)
  } else {
    for (const number of numbers(5, 5 + TAIL)) {
      await client.send(producer, topic, 0, [number])
      await sleep(20)
    }
  }
  await producer.disconnect()
  return { records: await reading }
}

async function commitRounds(topic) {
  const producer = await client.producer(`${run}-tail`)
  for (const round of numbers(0, ROUNDS)) {
    const transaction = await producer.transaction()
    await client.send(transaction, topic, 0, [5 + 2 * round, 6 + 2 * round])
    await (round % 4 === 2 ? transaction.abort() : transaction.commit())
    await sleep(20)
  }
  await producer.disconnect()
}

async function readConfig(topic, name) {
  const resource = { type: ConfigResourceTypes.TOPIC, name: topic, configNames: [name] }
  const { resources } = await admin.describeConfigs({ resources: [resource], includeSynonyms: false })
  return resources[0].configEntries.find(one => one.configName === name).configValue
}

async function countPartitions(topic) {
  return (await admin.fetchTopicMetadata({ topics: [topic] })).topics[0].partitions.length
}

async function manage() {
  const topic = await client.create('admin', 2)
  const producer = await client.producer()
  await client.send(producer, topic, 0, numbers(0, 6))
  await producer.disconnect()
  const seen = { again: await admin.createTopics({ topics: [{ topic, numPartitions: 1 }] }) }
  seen.nodes = (await admin.describeCluster()).brokers.length
  seen.partitions = await countPartitions(topic)
  await admin.createPartitions({ topicPartitions: [{ topic, count: 3 }] })
  await wait('the partitions are there', async () => (await countPartitions(topic)) === 3)
  const configEntries = [{ name: 'retention.ms', value: '7200000' }]
  const changed = { type: ConfigResourceTypes.TOPIC, name: topic, configEntries }
  await admin.alterConfigs({ validateOnly: false, resources: [changed] })
  await wait('it is told', async () => (await readConfig(topic, 'retention.ms')) === '7200000')
  seen.config = await readConfig(topic, 'retention.ms')
  await admin.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: '4' }] })
  seen['low watermark'] = (await client.ends(topic))[0]
  seen.groups = (await admin.listGroups()).groups.some(one => one.groupId.startsWith(run))
  await admin.deleteTopics({ topics: [topic] })
  await wait('the topic is gone', async () => !(await admin.listTopics()).includes(topic))
  return { ...seen, deleted: true }
}

const others = { seeks, times, 'group-classic': group, transactions, admin: manage }
const lacks = { 'group-consumer': 'KafkaJS has only the classic group protocol' }

async function see(step) {
  if (step.startsWith('codec-')) return codec(step.slice(6))
  if (step.startsWith('tail')) return tail(step, step.endsWith('committed'))
  return others[step]()
}

await plugIn()
for (const step of steps) {
  const line = { step }
  const begun = Date.now()
  try {
    if (lacks[step]) line.no = lacks[step]
    else line.seen = await see(step)
  } catch (error) {
    console.error(error)
    line.error = `${nameOf(error)}: ${error.message}`
  }
  console.log(JSON.stringify({ ...line, ms: Date.now() - begun }))
}
process.exit(0)
