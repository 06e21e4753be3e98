// One Arrow IPC message: its metadata, and the checks before any byte of its body is used.

/** The record batch message at hand, and what its columns share. */
static final class Arrow {
  private static final int PREFIX_BYTES = 8; // ffffffff, then the length of the metadata
  private static final int MOST_RATIO = 32 * 1024, SPARE_BYTES = 128 * 1024, BARE_BYTES = 8;
  static final int AS_IS = 0, LZ4 = 1, ZSTD = 2;

  final Unpack unpack = new Unpack();
  final long mostBytes;
  byte[] bytes = null;
  int codec = AS_IS;
  private final Column[] columns;
  private final org.apache.arrow.flatbuf.FieldNode node = new org.apache.arrow.flatbuf.FieldNode();
  private final org.apache.arrow.flatbuf.Buffer buffer = new org.apache.arrow.flatbuf.Buffer();
  private org.apache.arrow.flatbuf.RecordBatch batch = null;
  private Frames frames = null;
  private int bodyAt = 0, bodyBytes = 0, nodes = 0, buffers = 0;
  private long taken = 0, inflated = 0, bare = 0;

  /** mostBytes: limit on the compressed buffers of a frame after decompression. */
  Arrow(Column[] columns, long mostBytes) {
    this.columns = columns;
    this.mostBytes = mostBytes;
  }

  /** Points all columns at the message of the frame at hand; unpacks nothing yet. */
  void open(Frames from) {
    frames = from;
    bytes = from.message;
    int rows = from.rows;
    try {
      parse(from.length);
      if (batch.length() != rows)
        throw damaged("it states " + rows + " rows and holds " + batch.length());
      nodes = buffers = 0;
      taken = inflated = 0;
      bare = columns.length == 0 ? rows : 0;
      for (int c = 0; c < columns.length; c++) place(columns[c], rows, true);
      int allNodes = batch.nodesLength(), allBuffers = batch.buffersLength();
      if (nodes != allNodes || buffers != allBuffers)
        throw damaged("expected " + nodes + " nodes and " + buffers + " buffers, found " + allNodes
            + " and " + allBuffers);
    } catch (IndexOutOfBoundsException e) {
      throw damaged("its metadata leads out of it: " + e);
    } catch (IllegalArgumentException e) {
      throw damaged("its metadata cannot be read: " + e);
    }
    if (taken > bodyBytes)
      throw damaged("buffers of " + taken + " bytes share a body of " + bodyBytes);
    if (inflated > mostBytes)
      throw damaged("buffers become " + inflated + " bytes, at most " + mostBytes);
    if (bare > mostBytes / BARE_BYTES)
      throw damaged(bare + " values have no bytes, at most " + mostBytes / BARE_BYTES);
  }

  private void parse(int length) {
    int start = Platform.BYTE_ARRAY_OFFSET;
    if (length < PREFIX_BYTES || Platform.getInt(bytes, start) != -1)
      throw damaged("no Arrow message");
    int size = Platform.getInt(bytes, start + 4);
    if (size < 8 || size > length - PREFIX_BYTES) throw damaged("metadata of " + size + " bytes");
    // Janino takes the bridge method of `slice`, which returns a Buffer
    java.nio.ByteBuffer metadata =
        (java.nio.ByteBuffer) java.nio.ByteBuffer.wrap(bytes, PREFIX_BYTES, size).slice();
    org.apache.arrow.flatbuf.Message message =
        org.apache.arrow.flatbuf.Message.getRootAsMessage(metadata);
    if (message.headerType() != org.apache.arrow.flatbuf.MessageHeader.RecordBatch)
      throw damaged("Arrow message of type " + message.headerType());
    if (message.version() != org.apache.arrow.flatbuf.MetadataVersion.V5
        && message.version() != org.apache.arrow.flatbuf.MetadataVersion.V4)
      throw damaged("Arrow metadata of version " + message.version());
    bodyAt = PREFIX_BYTES + size;
    bodyBytes = length - bodyAt;
    if (message.bodyLength() != bodyBytes)
      throw damaged("its body should have " + message.bodyLength() + " bytes and has " + bodyBytes);
    batch = (org.apache.arrow.flatbuf.RecordBatch) message.header(
        new org.apache.arrow.flatbuf.RecordBatch());
    if (batch == null) throw damaged("no record batch");
    codec = codec(batch.compression());
  }

  private int codec(org.apache.arrow.flatbuf.BodyCompression compression) {
    if (compression == null) return AS_IS;
    if (compression.method() != org.apache.arrow.flatbuf.BodyCompressionMethod.BUFFER)
      throw damaged("unknown compression method " + compression.method());
    if (compression.codec() == org.apache.arrow.flatbuf.CompressionType.LZ4_FRAME) return LZ4;
    if (compression.codec() == org.apache.arrow.flatbuf.CompressionType.ZSTD) return ZSTD;
    throw damaged("unknown compression " + compression.codec());
  }

  /** Gives a column and its children their nodes and buffers, in Arrow's order: depth first. */
  private void place(Column column, int least, boolean exact) {
    if (nodes >= batch.nodesLength()) throw damaged("it has only " + nodes + " nodes");
    batch.nodes(node, nodes++);
    long length = node.length(), nulls = node.nullCount();
    if (length < least || length > Integer.MAX_VALUE - 1 || exact && length != least)
      throw damaged("a column of " + length + " values, expected " + least);
    if (nulls < 0 || nulls > length) throw damaged(nulls + " nulls of " + length + " values");
    if (column.kind == Kinds.NOTHING) {
      bare += length;
      column.begin(this, (int) length, (int) length);
      return;
    }
    if (column.kind == Kinds.STRUCT && column.children.length == 0) bare += length;
    place(column.validPiece, nulls > 0 ? (length + 7) / 8 : 0);
    if (column.hasOffsets()) place(column.offsetsPiece, length > 0 ? 4 * length + 4 : 0);
    if (column.hasData()) {
      boolean bits = column.kind == Kinds.BITS;
      place(column.dataPiece, bits ? (length + 7) / 8 : column.width * length);
    }
    column.begin(this, (int) length, (int) nulls);
    int below = column.kind == Kinds.STRUCT ? (int) length : 0;
    for (int c = 0; c < column.children.length; c++) place(column.children[c], below, false);
  }

  /** Gives a piece its buffer of at least `least` bytes, once unpacked. */
  private void place(Piece piece, long least) {
    if (buffers >= batch.buffersLength()) throw damaged("it has only " + buffers + " buffers");
    batch.buffers(buffer, buffers++);
    long start = buffer.offset(), stored = buffer.length(), size = stored;
    boolean packed = false;
    if (stored == 0) start = 0;
    if (start < 0 || stored < 0 || start > bodyBytes || stored > bodyBytes - start)
      throw damaged("a buffer of " + stored + " bytes at " + start + " in a body of " + bodyBytes);
    taken += stored;
    if (codec != AS_IS && stored > 0) {
      if (stored < 8) throw damaged("a compressed buffer of " + stored + " bytes");
      size = Platform.getLong(bytes, Platform.BYTE_ARRAY_OFFSET + bodyAt + start);
      start += 8;
      stored -= 8;
      packed = size != -1;
      if (!packed) size = stored;
      else if (size < 0 || size > mostBytes || size > stored * MOST_RATIO + SPARE_BYTES)
        throw damaged("a buffer of " + stored + " bytes says that it becomes " + size);
      else inflated += size;
    }
    if (size < least) throw damaged("a buffer of " + size + " bytes, expected " + least);
    piece.begin(bodyAt + (int) start, (int) stored, (int) size, packed);
  }

  RuntimeException damaged(String what) { return frames.damaged(what); }

  /** Returns how many of the first `count` bits are set. */
  static int ones(byte[] bits, long at, int count) {
    int found = 0, words = count >>> 6;
    for (int w = 0; w < words; w++) found += Long.bitCount(Platform.getLong(bits, at + 8L * w));
    for (int i = words << 6; i < count; i++)
      found += Platform.getByte(bits, at + (i >> 3)) >> (i & 7) & 1;
    return found;
  }

  /** Returns whether count + 1 offsets ascend from at least 0 to at most `most`. */
  static boolean ascend(byte[] offsets, long at, int count, int most) {
    int before = Platform.getInt(offsets, at), wrong = before;
    for (int i = 1; i <= count; i++) {
      int now = Platform.getInt(offsets, at + 4L * i);
      wrong |= now | now - before; // its sign: below 0, or below the one before
      before = now;
    }
    return wrong >= 0 && before <= most;
  }
}

/** One buffer: its place in the message, and its bytes once they are unpacked. */
static final class Piece {
  private static final int KEPT_BYTES = 1 << 20;
  byte[] bytes = null;
  long at = 0;
  int size = 0;
  private byte[] own = new byte[0];
  private int from = 0, stored = 0;
  private boolean packed = false;

  void begin(int from, int stored, int size, boolean packed) {
    this.from = from;
    this.stored = stored;
    this.size = size;
    this.packed = packed;
    if (own.length > KEPT_BYTES && own.length / 8 > size) own = new byte[0];
  }

  /** Makes the `size` bytes readable in `bytes` from `at` on. */
  void unpack(Arrow arrow) {
    if (!packed) {
      bytes = arrow.bytes;
      at = Platform.BYTE_ARRAY_OFFSET + from;
      return;
    }
    if (own.length < size) own = new byte[size + size / 8];
    try {
      arrow.unpack.unpack(arrow.codec, arrow.bytes, from, from + stored, own, size);
    } catch (RuntimeException e) {
      throw arrow.damaged("a buffer cannot be decompressed: " + e);
    }
    bytes = own;
    at = Platform.BYTE_ARRAY_OFFSET;
  }
}
