// The record by which a task tells the next driver of damage, as `seal/suspect.py` writes it.

/** Appends a SUSPECT, which Python has made, to the log of the stage. Best effort: an error of the
    read counts, so nothing is said about an error here. */
static final class Note {
  private static final int CRC_AT = 12, HEADER_BYTES = 16, MOST_SLOTS = 10000;
  private final String root, log;
  private final byte[] made; // the record, not bound to a slot yet

  Note(String root, java.util.Map how) {
    this.root = root.endsWith("/") ? root : root + "/";
    log = (String) how.get("log");
    made = (byte[]) how.get("note");
  }

  void append() {
    if (log == null || made == null) return;
    try {
      java.nio.file.Path folder = path(log.substring(0, log.length() - 1));
      if (!folder.toRealPath(new java.nio.file.LinkOption[0]).equals(folder)) return; // a link
      for (int slot = 0; slot < MOST_SLOTS; slot++) {
        String key = log + String.format("%010d", new Object[] {Integer.valueOf(slot)});
        java.io.File file = path(key).toFile();
        if (!file.exists() && create(folder, path(key), bound(key))) return;
        if (ends(file)) return;
      }
    } catch (java.io.IOException e) {
      // the next reader tries again
    }
  }

  /** Returns whether the record stands there, from another task of this read, or a release. */
  private boolean ends(java.io.File file) throws java.io.IOException {
    java.io.RandomAccessFile open = new java.io.RandomAccessFile(file, "r");
    try {
      int count = (int) Math.min(open.length(), made.length);
      byte[] found = new byte[count];
      open.seek(open.length() - count);
      open.readFully(found);
      String kind = new String(found, Math.max(0, count - 7), Math.min(7, count), "ISO-8859-1");
      if (kind.equals("RELEASE") || kind.endsWith("CLOSED")) return true; // the last field
      if (open.length() != made.length) return false;
      for (int i = HEADER_BYTES; i < count; i++)
        if (found[i] != made[i]) return false;
      return true;
    } finally {
      open.close();
    }
  }

  /** Creates a slot as `storage/local.py` does; returns false if it is taken. */
  private boolean create(java.nio.file.Path folder, java.nio.file.Path slot, byte[] stored)
      throws java.io.IOException {
    String id = java.util.UUID.randomUUID().toString().replace("-", "");
    java.nio.file.Path hidden = folder.resolve("." + id + ".tmp");
    java.nio.channels.FileChannel channel = java.nio.channels.FileChannel.open(hidden,
        new java.nio.file.OpenOption[] {
            java.nio.file.StandardOpenOption.WRITE, java.nio.file.StandardOpenOption.CREATE_NEW});
    try {
      java.nio.ByteBuffer rest = java.nio.ByteBuffer.wrap(stored);
      while (rest.hasRemaining()) channel.write(rest);
      channel.force(true);
      java.nio.file.Files.createLink(slot, hidden);
      return true;
    } catch (java.nio.file.FileAlreadyExistsException e) {
      return false;
    } finally {
      channel.close();
      java.nio.file.Files.deleteIfExists(hidden);
    }
  }

  /** Returns what is stored under a key: the CRC of the key goes into that of the note. */
  private byte[] bound(String key) throws java.io.IOException {
    java.util.zip.CRC32 crc = new java.util.zip.CRC32();
    byte[] name = key.getBytes("UTF-8"), stored = (byte[]) made.clone();
    crc.update(name, 0, name.length);
    for (int i = 0; i < 4; i++) stored[CRC_AT + i] ^= (byte) (crc.getValue() >> 8 * i);
    return stored;
  }

  private java.nio.file.Path path(String key) {
    return java.nio.file.Paths.get(root + key, new String[0]);
  }
}
