// The record by which a task tells the next driver of damage, as `seal/suspect.py` writes it.

/** Appends a SUSPECT, which Python has made, to the log of the stage. Best effort: an error of the
    read counts, so nothing is said about an error here. */
static final class Note {
  private static final int CRC_AT = 12, HEADER_BYTES = 16, MOST_SLOTS = 10000, TAIL_BYTES = 4096;
  private final String root, log, index;
  private final byte[] made; // the record, not bound to a slot yet

  Note(String root, java.util.Map how) {
    this.root = root.endsWith("/") ? root : root + "/";
    log = (String) how.get("log");
    made = (byte[]) how.get("note");
    String key = (String) how.get("index");
    index = key.substring(key.lastIndexOf('/') + 1); // its id
  }

  void append() {
    if (log == null || made == null) return;
    try {
      java.nio.file.Path folder = path(log.substring(0, log.length() - 1));
      if (!folder.toRealPath(new java.nio.file.LinkOption[0]).equals(folder)) return; // a link
      boolean known = false; // whether a SUSPECT of this index counts
      for (int slot = 0; slot < MOST_SLOTS; slot++) {
        String name = String.valueOf(slot);
        String key = log + "0000000000".substring(name.length()) + name;
        java.io.File file = path(key).toFile();
        if (!file.exists() && (known || create(folder, path(key), bound(key)))) return;
        byte[] found = tail(file);
        String text = new String(found, "ISO-8859-1"); // the kind is the last field
        if (text.endsWith("RELEASE") || text.endsWith("CLOSED") || isThis(found)) return;
        if (text.endsWith("SUSPECT")) known = known || text.contains(index);
        if (text.endsWith("DAMAGED") || text.endsWith("REPLACE")) known = false;
      }
    } catch (java.io.IOException e) {
      // the next reader tries again
    }
  }

  private byte[] tail(java.io.File file) throws java.io.IOException {
    java.io.RandomAccessFile open = new java.io.RandomAccessFile(file, "r");
    try {
      byte[] found = new byte[(int) Math.min(open.length(), TAIL_BYTES)];
      open.seek(open.length() - found.length);
      open.readFully(found);
      return found;
    } finally {
      open.close();
    }
  }

  /** Returns whether these are the bytes of the record, as another task of this read wrote them. */
  private boolean isThis(byte[] found) {
    if (found.length != made.length) return false;
    for (int i = HEADER_BYTES; i < found.length; i++)
      if (found[i] != made[i]) return false;
    return true;
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
