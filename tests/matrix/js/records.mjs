// The matrix's records: what is sent by number, and how a record that was read is printed. The same in every language.
import { createHash } from 'node:crypto'

export const START_MS = 1_700_000_000_000
const TIME_TYPES = { 0: 'CreateTime', 1: 'LogAppendTime' }

export function buildValue(number) {
  if (number % 10 === 6) return null
  const text = `v${number}-` + 'x'.repeat(200 + ((number * 37) % 400))
  return Buffer.concat([Buffer.from(text), Buffer.from([0xff, 0x00])])
}

export function buildRecord(number, partition) {
  const headers = {}
  if (number % 4 === 1) Object.assign(headers, { number: String(number), empty: '' })
  if (number % 4 === 2) headers.null = '' // KafkaJS takes no null in a header
  return {
    partition,
    key: number % 5 === 4 ? null : `k${number % 3}`,
    value: buildValue(number),
    headers,
    timestamp: String(START_MS + number * 1000)
  }
}

const hex = bytes => (bytes === null || bytes === undefined ? null : Buffer.from(bytes).toString('hex'))

function digest(value) {
  if (value === null) return null
  return `${value.length}:${createHash('sha256').update(value).digest('hex').slice(0, 12)}`
}

export function show(partition, message) {
  const headers = Object.entries(message.headers ?? {}).map(([name, value]) => [name, hex(value)])
  const kind = TIME_TYPES[message.batchContext?.timestampType] ?? 'not said'
  const offset = Number(message.offset)
  return [partition, offset, hex(message.key), digest(message.value), headers, Number(message.timestamp), kind]
}
