// Objects of a storage in a folder, as files; and errors with the names that Python gives them.

/** Reads ranges of objects. It refuses what `storage/local.py` refuses. One file at most is open. */
static final class Folder {
  private static final int UNREADABLE_TRIES = 4, FIRST_MS = 50, LONGEST_MS = 2000;
  private static final java.nio.file.LinkOption[] NO_LINKS =
      new java.nio.file.LinkOption[] {java.nio.file.LinkOption.NOFOLLOW_LINKS};
  private final String root;
  private final long callMs; // how long a failing read is tried again
  private String key = null; // of the open file
  private java.nio.channels.FileChannel channel = null;
  private long size = 0;

  Folder(String root, double callSeconds) {
    callMs = (long) (1000 * callSeconds);
    this.root = root.endsWith("/") ? root.substring(0, root.length() - 1) : root;
  }

  /** Fills `count` bytes of `into` with those from `start` on, all or none. */
  void read(String of, long start, byte[] into, int at, int count) {
    long began = System.nanoTime();
    for (int tries = 1;; tries++) {
      try {
        open(of);
        check(of, start, count);
        java.nio.ByteBuffer rest = java.nio.ByteBuffer.wrap(into, at, count);
        while (rest.hasRemaining())
          if (channel.read(rest, start + (count - rest.remaining())) < 0)
            throw corrupt("object " + of + " shrank while it was read, expected " + count
                + " bytes from " + start + ", found " + (count - rest.remaining()));
        return;
      } catch (java.io.IOException e) {
        close();
        failed(of, e, tries, began);
      }
    }
  }

  /** Returns the length of an object that has bytes [start, start + length). */
  long sizeWith(String of, long start, long length) {
    long began = System.nanoTime();
    for (int tries = 1;; tries++) {
      try {
        open(of);
        check(of, start, length);
        return size;
      } catch (java.io.IOException e) {
        close();
        failed(of, e, tries, began);
      }
    }
  }

  void close() {
    java.nio.channels.FileChannel open = channel;
    channel = null;
    key = null;
    try {
      if (open != null) open.close();
    } catch (java.io.IOException e) {
      // nothing was written
    }
  }

  private void check(String of, long start, long length) {
    if (start < 0 || length < 0 || start > size || length > size - start)
      throw corrupt("object " + of + " is too short, expected at least "
          + Long.toUnsignedString(start + length) + " bytes, found " + size);
  }

  /** Follows no link, and opens no pipe, which would wait for a writer. */
  private void open(String of) throws java.io.IOException {
    if (of.equals(key)) return;
    close();
    for (int end = of.indexOf('/'); end >= 0; end = of.indexOf('/', end + 1))
      if (java.nio.file.Files.isSymbolicLink(path(of.substring(0, end))))
        throw notAnObject(of.substring(0, end));
    java.nio.file.attribute.BasicFileAttributes found =
        (java.nio.file.attribute.BasicFileAttributes) java.nio.file.Files.readAttributes(
            path(of), java.nio.file.attribute.BasicFileAttributes.class, NO_LINKS);
    if (!found.isRegularFile()) throw notAnObject(of);
    channel = java.nio.channels.FileChannel.open(path(of),
        new java.nio.file.OpenOption[] {
            java.nio.file.StandardOpenOption.READ, java.nio.file.LinkOption.NOFOLLOW_LINKS});
    size = channel.size();
    key = of;
  }

  private java.nio.file.Path path(String of) {
    return java.nio.file.Paths.get(root + "/" + of, new String[0]);
  }

  /** Waits before the next try, or throws what no try can change. */
  private void failed(String of, java.io.IOException e, int tries, long began) {
    TaskContext task = TaskContext.get();
    if (task != null) task.killTaskIfInterrupted();
    String why = String.valueOf(e.getMessage());
    if (e instanceof java.nio.file.NoSuchFileException || why.endsWith("Not a directory"))
      throw error("NotFoundError", "cannot read " + of + ": no such file: was the stage released?");
    if (why.endsWith("Too many levels of symbolic links")) throw notAnObject(of);
    String text = "cannot read " + of + ": " + e + "; tries=" + tries;
    if (e instanceof java.nio.file.AccessDeniedException) throw error("InvalidInputError", text);
    if (e instanceof java.nio.channels.ClosedByInterruptException)
      throw error("AbortedError", text); // whoever interrupted this thread wants it to end
    if (tries == UNREADABLE_TRIES && why.endsWith("Input/output error"))
      throw corrupt(text + ": what it holds is damaged; run verify --repair");
    long pause = tries > 6 ? LONGEST_MS : Math.min(LONGEST_MS, FIRST_MS << (tries - 1));
    if ((System.nanoTime() - began) / 1000000 + pause > callMs)
      throw error("UnavailableError", text);
    try {
      Thread.sleep(pause);
    } catch (InterruptedException again) {
      Thread.currentThread().interrupt();
      throw error("AbortedError", text);
    }
  }

  private RuntimeException notAnObject(String of) {
    return corrupt(of + " is a link, a folder or a special file: objects are regular files in "
        + "folders below the root; nothing is read, written or deleted through it: remove it, run "
        + "verify");
  }

  private RuntimeException corrupt(String what) { return error("CorruptDataError", what); }

  private RuntimeException error(String kind, String what) {
    return Failure.of(kind, "file:" + root + ": " + what);
  }
}

/** Errors of `serialization/errors.py`. They reach the driver as those of a Python worker do. */
static final class Failure {
  private static final String MODULE = "durable_shuffle.serialization.errors.";
  private static final String WHAT = "An exception was thrown while Spark's JVM read stored rows";

  /** Returns whether an object is missing or damaged; then a driver may mend it. */
  static boolean isDamage(RuntimeException e) {
    String said = String.valueOf(e.getMessage());
    return said.contains(MODULE + "CorruptDataError") || said.contains(MODULE + "NotFoundError");
  }

  /** Returns what PySpark takes for the error of a Python worker. */
  static RuntimeException of(String kind, String text) {
    String said = MODULE + kind + ": " + text;
    try {
      java.lang.reflect.Constructor[] ways =
          org.apache.spark.api.python.PythonException.class.getConstructors();
      for (int w = 0; w < ways.length; w++) {
        Class[] types = ways[w].getParameterTypes();
        // from Spark 4.2 on, more arguments follow these two
        if (types.length < 2 || types[0] != String.class || types[1] != Throwable.class) continue;
        Object[] given = new Object[types.length];
        given[0] = said;
        for (int i = 2; i < given.length; i++) given[i] = argument(types[i], said);
        return marked((RuntimeException) ways[w].newInstance(given));
      }
    } catch (ReflectiveOperationException e) {
      // another Spark than expected
    }
    return new IllegalStateException(said);
  }

  private static Object argument(Class type, String said) {
    if (type == scala.Option.class) return scala.Option.apply("PYTHON_EXCEPTION");
    if (type.isArray()) return java.lang.reflect.Array.newInstance(type.getComponentType(), 0);
    return new scala.collection.immutable.Map.Map2("msg", WHAT, "traceback", said);
  }

  /** PySpark 4.0 and 4.1 look for this package in the stack of an error. */
  private static RuntimeException marked(RuntimeException error) {
    StackTraceElement[] stack = error.getStackTrace();
    StackTraceElement[] longer = new StackTraceElement[stack.length + 1];
    System.arraycopy(stack, 0, longer, 0, stack.length);
    longer[stack.length] = new StackTraceElement(
        "org.apache.spark.sql.execution.python.durable_shuffle", "read", "stored.java", -1);
    error.setStackTrace(longer);
    return error;
  }
}
