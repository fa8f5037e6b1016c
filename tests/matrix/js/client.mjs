// Producers, consumers and admin of KafkaJS for one run, and what every step does with them.
import { createRequire } from 'node:module'
import { codecs } from './codecs.mjs'
import { buildRecord, show } from './records.mjs'

const { Kafka, logLevel } = createRequire(import.meta.url)('kafkajs')
const PATIENCE_MS = 40_000

export const sleep = ms => new Promise(resolve => setTimeout(resolve, ms))
export const numbers = (from, until) => Array.from({ length: until - from }, (_, at) => from + at)

export async function wait(what, check) {
  const deadline = Date.now() + PATIENCE_MS
  while (!(await check())) {
    if (Date.now() > deadline) throw new Error(`in vain: ${what}`)
    await sleep(50)
  }
}

// A member of a group of its own where none is given: KafkaJS cannot read without a group.
class Reader {
  constructor(consumer) {
    this.consumer = consumer
    this.seen = []
    this.assigned = 0
    this.next = new Map()
  }

  async start(topic) {
    await this.consumer.connect()
    this.consumer.on('consumer.group_join', ({ payload }) => {
      this.assigned = payload.memberAssignment[topic]?.length ?? 0
    })
    await this.consumer.subscribe({ topic, fromBeginning: true })
    const eachMessage = async ({ partition, message }) => {
      this.seen.push(show(partition, message))
      this.next.set(partition, Number(message.offset) + 1)
    }
    await this.consumer.run({ autoCommit: false, eachMessage })
    this.topic = topic
    return this
  }

  // What is seen from that offset on, and nothing from before the call.
  async takeFrom(offset, count) {
    this.consumer.seek({ topic: this.topic, partition: 0, offset: String(offset) })
    await wait(`a record from ${offset}`, () => this.seen.some(one => one[1] === offset))
    const begin = () => this.seen.findLastIndex(one => one[1] === offset)
    await wait(`${count} from ${offset}`, () => this.seen.length - begin() >= count)
    return this.seen.slice(begin(), begin() + count)
  }

  async take(count) {
    await wait(`${count} records`, () => this.seen.length >= count)
    return this.seen.splice(0)
  }

  async commit() {
    const offsets = [...this.next].map(([partition, offset]) => ({ topic: this.topic, partition, offset: `${offset}` }))
    await this.consumer.commitOffsets(offsets)
  }

  close() {
    return this.consumer.disconnect()
  }
}

export class Client {
  constructor(bootstrap, run) {
    this.kafka = new Kafka({ clientId: run, brokers: [bootstrap], logLevel: logLevel.NOTHING })
    this.run = run
    this.groups = 0
  }

  async start() {
    this.admin = this.kafka.admin()
    await this.admin.connect()
    return this
  }

  async producer(transactionalId) {
    const options = { idempotent: true, maxInFlightRequests: 1, allowAutoTopicCreation: false }
    const producer = this.kafka.producer(transactionalId ? { ...options, transactionalId } : options)
    await producer.connect()
    return producer
  }

  // Sends records, by a producer or in a transaction; their offsets.
  async send(sender, topic, partition, which, codec = 'none') {
    const messages = which.map(number => buildRecord(number, partition))
    const [{ baseOffset }] = await sender.send({ topic, acks: -1, compression: codecs[codec], messages })
    return which.map((_, at) => Number(baseOffset) + at)
  }

  read(topic, { committed = false, group } = {}) {
    const groupId = group ?? `${this.run}-reader-${this.groups++}`
    const options = { groupId, readUncommitted: !committed, heartbeatInterval: 500, maxWaitTimeInMs: 300 }
    return new Reader(this.kafka.consumer(options)).start(topic)
  }

  async readAll(topic, count, committed = false) {
    const reader = await this.read(topic, { committed })
    try {
      return await reader.take(count)
    } finally {
      await reader.close()
    }
  }

  async create(name, partitions = 1) {
    const topic = `${this.run}-${name}`
    const wanted = { topic, numPartitions: partitions, replicationFactor: 1 }
    await this.admin.createTopics({ topics: [wanted], waitForLeaders: true })
    await wait('its leaders answer', async () => (await this.ends(topic)) !== null)
    return topic
  }

  async ends(topic) {
    try {
      const [first] = (await this.admin.fetchTopicOffsets(topic)).filter(one => one.partition === 0)
      return [Number(first.low), Number(first.high)]
    } catch {
      return null
    }
  }

  async committed(group, topic) {
    const [{ partitions }] = await this.admin.fetchOffsets({ groupId: group, topics: [topic] })
    const pairs = partitions.map(one => [one.partition, Number(one.offset)]).sort((one, other) => one[0] - other[0])
    return Object.fromEntries(pairs)
  }
}
