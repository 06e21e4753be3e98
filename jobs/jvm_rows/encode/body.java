// The body of an Arrow record batch message. Part of the encoder's text.

/** Compresses the columns' buffers and describes them. */
static final class Body {
  private static final int BLOCK = 4 << 20; // of LZ4
  private final int codec; // 0 none, 1 LZ4 frames, 2 Zstandard
  private final net.jpountz.lz4.LZ4Compressor lz4;
  private final Bytes packed = new Bytes(1 << 16), head = new Bytes(1 << 10);
  private final com.google.flatbuffers.FlatBufferBuilder builder =
      new com.google.flatbuffers.FlatBufferBuilder(1 << 12);
  private long[] nodes = new long[32], places = new long[64]; // (rows, nulls) and (offset, length)
  private int nodeCount, placeCount;
  private Message message;
  private boolean plain;
  private long end; // of the body so far
  private long plainBytes; // of all buffers before compression

  Body(String compression) {
    codec = compression.equals("lz4") ? 1 : compression.equals("zstd") ? 2 : 0;
    if (codec == 0 && !compression.equals("none"))
      throw new IllegalArgumentException("unknown compression " + compression);
    lz4 = codec == 1 ? net.jpountz.lz4.LZ4Factory.fastestInstance().fastCompressor() : null;
  }

  long capacity() { return packed.data.length; }

  /** Makes the message of these columns; returns their bytes before compression. */
  long make(Column[] columns, int rows, boolean uncompressed, Message to) {
    nodeCount = placeCount = 0;
    end = plainBytes = 0;
    plain = uncompressed || codec == 0;
    packed.clear();
    head.clear();
    to.clear();
    to.add(head.data, 0); // its place; what it holds comes last
    message = to;
    for (int c = 0; c < columns.length; c++) columns[c].store(this);
    if (!plain) to.add(packed.data, packed.size);
    describe(rows);
    to.first(head.data, head.size);
    return plainBytes;
  }

  void node(int rows, int nulls) {
    if (nodeCount + 2 > nodes.length) nodes = java.util.Arrays.copyOf(nodes, 2 * nodeCount);
    nodes[nodeCount++] = rows;
    nodes[nodeCount++] = nulls;
  }

  /** Adds a buffer. It must not change before the message is written. */
  void buffer(Bytes raw) {
    int size = raw.size;
    plainBytes += size;
    if (plain) {
      raw.align();
      message.add(raw.data, raw.size);
      place(end, size);
      end += raw.size;
      raw.size = size;
      return;
    }
    int at = packed.size;
    if (size > 0) {
      packed.put8(size);
      if (codec == 1) lz4Frame(raw.data, size);
      else zstandard(raw.data, size);
      if (packed.size - at - 8 >= size) { // not shorter: as it is, marked by -1
        packed.size = at;
        packed.put8(-1L);
        packed.put(raw.data, 0, size);
      }
    }
    place(at, packed.size - at);
    packed.align();
    end = packed.size;
  }

  void empty() { place(end, 0); }

  private void place(long at, long length) {
    if (placeCount + 2 > places.length) places = java.util.Arrays.copyOf(places, 2 * placeCount);
    places[placeCount++] = at;
    places[placeCount++] = length;
  }

  /** Version 1, independent blocks of up to 4 MiB, no checksums: the frame's CRC covers them. */
  private void lz4Frame(byte[] raw, int length) {
    packed.need(15L + lz4.maxCompressedLength(length) + 8L * (1 + length / BLOCK));
    packed.put4(0x184D2204);
    packed.put4(0x00737060);
    packed.size--;
    for (int done = 0; done < length; done += BLOCK) {
      int size = Math.min(BLOCK, length - done), room = packed.data.length - packed.size - 4;
      int now = lz4.compress(raw, done, size, packed.data, packed.size + 4, room);
      if (now < size) {
        packed.put4(now);
        packed.size += now;
      } else {
        packed.put4(size | 0x80000000);
        packed.put(raw, done, size);
      }
    }
    packed.put4(0);
  }

  private void zstandard(byte[] raw, int length) {
    int room = (int) com.github.luben.zstd.Zstd.compressBound((long) length);
    packed.need(room);
    long now = com.github.luben.zstd.Zstd.compressByteArray(
        packed.data, packed.size, room, raw, 0, length, 1);
    if (com.github.luben.zstd.Zstd.isError(now))
      throw new IllegalStateException(com.github.luben.zstd.Zstd.getErrorName(now));
    packed.size += (int) now;
  }

  /** Writes the metadata: flatbuffers tables Message and RecordBatch, version V5. */
  private void describe(int rows) {
    com.google.flatbuffers.FlatBufferBuilder b = builder;
    b.clear();
    org.apache.arrow.flatbuf.RecordBatch.startNodesVector(b, nodeCount / 2);
    for (int i = nodeCount - 2; i >= 0; i -= 2)
      org.apache.arrow.flatbuf.FieldNode.createFieldNode(b, nodes[i], nodes[i + 1]);
    int nodeVector = b.endVector();
    org.apache.arrow.flatbuf.RecordBatch.startBuffersVector(b, placeCount / 2);
    for (int i = placeCount - 2; i >= 0; i -= 2)
      org.apache.arrow.flatbuf.Buffer.createBuffer(b, places[i], places[i + 1]);
    int bufferVector = b.endVector();
    int compression = plain ? 0
                            : org.apache.arrow.flatbuf.BodyCompression.createBodyCompression(
                                  b, (byte) (codec - 1), (byte) 0);
    org.apache.arrow.flatbuf.RecordBatch.startRecordBatch(b);
    org.apache.arrow.flatbuf.RecordBatch.addLength(b, (long) rows);
    org.apache.arrow.flatbuf.RecordBatch.addNodes(b, nodeVector);
    org.apache.arrow.flatbuf.RecordBatch.addBuffers(b, bufferVector);
    if (!plain) org.apache.arrow.flatbuf.RecordBatch.addCompression(b, compression);
    int batch = org.apache.arrow.flatbuf.RecordBatch.endRecordBatch(b);
    org.apache.arrow.flatbuf.Message.startMessage(b);
    org.apache.arrow.flatbuf.Message.addBodyLength(b, end);
    org.apache.arrow.flatbuf.Message.addHeader(b, batch);
    org.apache.arrow.flatbuf.Message.addHeaderType(b, (byte) 3);
    org.apache.arrow.flatbuf.Message.addVersion(b, (short) 4);
    b.finish(org.apache.arrow.flatbuf.Message.endMessage(b));
    java.nio.ByteBuffer metadata = b.dataBuffer();
    int size = metadata.remaining(), padded = size + 7 & ~7;
    head.put4(-1);
    head.put4(padded);
    head.need(padded);
    metadata.get(head.data, head.size, size);
    head.size += size;
    head.align();
  }
}
