// Codecs for KafkaJS, which brings gzip alone and takes the others as plug-ins.
import { createRequire } from 'node:module'

const require = createRequire(import.meta.url)
const { CompressionCodecs, CompressionTypes } = require('kafkajs')

export const codecs = {
  none: CompressionTypes.None,
  gzip: CompressionTypes.GZIP,
  snappy: CompressionTypes.Snappy,
  lz4: CompressionTypes.LZ4,
  zstd: CompressionTypes.ZSTD
}

export async function plugIn() {
  CompressionCodecs[codecs.snappy] = require('kafkajs-snappy')
  const lz4 = require('lz4-napi')
  CompressionCodecs[codecs.lz4] = () => ({
    compress: encoder => lz4.compressFrame(encoder.buffer),
    decompress: buffer => lz4.decompressFrame(buffer)
  })
  const zstd = await new Promise(resolve => require('zstd-codec').ZstdCodec.run(found => resolve(new found.Simple())))
  CompressionCodecs[codecs.zstd] = () => ({
    compress: async encoder => Buffer.from(zstd.compress(encoder.buffer)),
    decompress: async buffer => Buffer.from(zstd.decompress(buffer))
  })
}
