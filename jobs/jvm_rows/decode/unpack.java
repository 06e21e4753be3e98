// LZ4 frames and zstd frames to bytes. Every length is checked before it is used.

/** Decompresses buffers. lz4-java cannot decode LZ4 blocks that refer to earlier ones. */
static final class Unpack {
  private static final int MAGIC = 0x184D2204, MOST_BLOCK_BYTES = 4 << 20;
  private final net.jpountz.lz4.LZ4SafeDecompressor lz4 = decompressor();

  /** Fills the first `wanted` bytes of `into`. Any RuntimeException means damage. */
  void unpack(int codec, byte[] in, int from, int stop, byte[] into, int wanted) {
    if (codec == Arrow.LZ4) {
      frame(in, from, stop, into, wanted);
      return;
    }
    long found =
        com.github.luben.zstd.Zstd.decompressByteArray(into, 0, wanted, in, from, stop - from);
    if (found != wanted) throw wrong("zstd frame: expected " + wanted + " bytes, found " + found);
  }

  private static net.jpountz.lz4.LZ4SafeDecompressor decompressor() {
    try {
      return net.jpountz.lz4.LZ4Factory.nativeInstance().safeDecompressor();
    } catch (Throwable e) { // no native library for this machine
      return net.jpountz.lz4.LZ4Factory.safeInstance().safeDecompressor();
    }
  }

  private void frame(byte[] in, int from, int stop, byte[] into, int wanted) {
    if (stop - from < 7 || int4(in, from) != MAGIC) throw wrong("no LZ4 frame");
    int flags = in[from + 4];
    if ((flags & 0xC0) != 0x40 || (flags & 1) != 0) throw wrong("LZ4 frame with flags " + flags);
    boolean linked = (flags & 0x20) == 0;
    int sum = (flags & 0x10) != 0 ? 4 : 0; // bytes of a checksum after each block
    int place = from + 7 + ((flags & 8) != 0 ? 8 : 0), done = 0;
    while (true) {
      if (stop - place < 4) throw wrong("LZ4 frame ends early");
      int size = int4(in, place);
      place += 4;
      if (size == 0) break;
      boolean plain = size < 0;
      size &= 0x7fffffff;
      if (size > MOST_BLOCK_BYTES || size > stop - place)
        throw wrong("LZ4 block of " + size + " bytes");
      if (plain) {
        if (size > wanted - done) throw wrong("LZ4 frame is too long");
        System.arraycopy(in, place, into, done, size);
        done += size;
      } else if (linked && done > 0) {
        done = block(in, place, place + size, into, done, wanted);
      } else {
        done += lz4.decompress(in, place, size, into, done, wanted - done);
      }
      place += size;
      if (sum > stop - place) throw wrong("LZ4 frame ends early");
      place += sum;
    }
    if (done != wanted) throw wrong("LZ4 frame: expected " + wanted + " bytes, found " + done);
  }

  /** Decodes a block that may refer to all of `into` before `at`; returns where its bytes end. */
  private static int block(byte[] in, int from, int stop, byte[] into, int at, int end) {
    long base = Platform.BYTE_ARRAY_OFFSET;
    while (true) {
      if (from >= stop) throw wrong("LZ4 block ends early");
      int token = in[from++] & 255, literals = token >>> 4, match = token & 15;
      if (literals == 15) {
        int more;
        do {
          if (from >= stop) throw wrong("LZ4 block ends early");
          more = in[from++] & 255;
          literals += more;
        } while (more == 255);
      }
      if (literals > stop - from || literals > end - at)
        throw wrong("LZ4 literals lead out of the block");
      if (literals <= 16 && stop - from >= 16 && end - at >= 16) {
        Platform.putLong(into, base + at, Platform.getLong(in, base + from)); // the next bytes
        Platform.putLong(into, base + at + 8, Platform.getLong(in, base + from + 8)); // overwrite
      } else {
        System.arraycopy(in, from, into, at, literals);
      }
      from += literals;
      at += literals;
      if (from == stop) return at;
      if (stop - from < 2) throw wrong("LZ4 block ends early");
      int back = in[from] & 255 | (in[from + 1] & 255) << 8;
      from += 2;
      if (match == 15) {
        int more;
        do {
          if (from >= stop) throw wrong("LZ4 block ends early");
          more = in[from++] & 255;
          match += more;
        } while (more == 255);
      }
      match += 4;
      if (back == 0 || back > at || match > end - at)
        throw wrong("LZ4 match leads out of the block");
      if (back >= 8 && end - at - match >= 8) {
        for (int i = 0; i < match; i += 8)
          Platform.putLong(into, base + at + i, Platform.getLong(into, base + at - back + i));
        at += match;
      } else {
        for (int stopAt = at + match; at < stopAt; at++) into[at] = into[at - back];
      }
    }
  }

  private static int int4(byte[] in, int place) {
    return Platform.getInt(in, Platform.BYTE_ARRAY_OFFSET + place);
  }

  private static IllegalArgumentException wrong(String what) {
    return new IllegalArgumentException(what);
  }
}
