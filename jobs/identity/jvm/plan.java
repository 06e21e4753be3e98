// Writes a tree of JVM objects as one document; see document.py. It decides nothing: what is asked
// of which class comes with each call.
public final class PlanDocument implements java.util.function.BiFunction {
  private final java.util.Map rules = new java.util.concurrent.ConcurrentHashMap();

  /** Returns a list: the document's text, then its objects by number. */
  public Object apply(Object root, Object asked) {
    Rules known = (Rules) rules.get(asked);
    if (known == null) {
      known = new Rules((String) asked);
      rules.put(asked, known);
    }
    return new Writer(known).written(root);
  }

  /** What is asked, and what is known of classes because of it. */
  static final class Rules {
    final java.util.List kinds = new java.util.ArrayList();
    final java.util.List members = new java.util.ArrayList();
    final java.util.List within = new java.util.ArrayList();
    final java.util.List apart = new java.util.ArrayList();
    final java.util.List closed = new java.util.ArrayList();

    Rules(String asked) {
      String[] lines = asked.split("\n");
      for (int i = 0; i < lines.length; i++) {
        String[] words = lines[i].split(" ");
        if (words[0].equals("kind")) kinds.add(classNamed(words[1]));
        else if (words[0].equals("member"))
          members.add(new Object[] {classNamed(words[1]), words[2]});
        else if (words[0].equals("within")) within.add(words[1]);
        else if (words[0].equals("apart")) apart.add(classNamed(words[1]));
        else if (words[0].equals("closed")) closed.add(classNamed(words[1]));
        else throw new IllegalArgumentException(lines[i]);
      }
    }

    boolean isApart(Object value) {
      for (int i = 0; i < apart.size(); i++) {
        Class of = (Class) apart.get(i);
        if (of != null && of.isInstance(value)) return true;
      }
      return false;
    }

    private static Class classNamed(String name) {
      try {
        return Class.forName(name, false, PlanDocument.class.getClassLoader());
      } catch (ClassNotFoundException missing) {
        return null;
      }
    }
  }

  /** One class that occurs in a document. */
  static final class Known {
    int number;
    final java.util.List asked = new java.util.ArrayList();
    final java.util.List methods = new java.util.ArrayList();
    boolean opened;
    boolean closed;

    Known(Object value, Rules rules, StringBuilder out) {
      Class of = value.getClass();
      out.append('[');
      text(org.apache.commons.lang3.ClassUtils.getName(of, "null"), out);
      out.append(",[");
      String comma = "";
      for (int i = 0; i < rules.kinds.size(); i++) {
        Class kind = (Class) rules.kinds.get(i);
        if (kind == null || !kind.isAssignableFrom(of)) continue;
        out.append(comma).append(i);
        comma = ",";
      }
      out.append("],");
      text(jar(of), out);
      for (int i = 0; i < rules.members.size(); i++) {
        Object[] member = (Object[]) rules.members.get(i);
        if (member[0] != null && ((Class) member[0]).isAssignableFrom(of)) asked.add(member[1]);
      }
      for (int i = 0; i < rules.closed.size(); i++) {
        Class shut = (Class) rules.closed.get(i);
        closed = closed || (shut != null && shut.isAssignableFrom(of));
      }
      if (closed) asked.clear();
      for (int i = 0; i < asked.size(); i++) methods.add(method(of, ((String) asked.get(i))));
      for (int i = 0; i < rules.within.size(); i++)
        opened = opened || of.getName().startsWith((String) rules.within.get(i));
      opened = opened && !closed && value instanceof scala.Product;
      out.append(",[");
      comma = "";
      for (int i = 0; i < asked.size(); i++) {
        out.append(comma);
        text((String) asked.get(i), out);
        comma = ",";
      }
      out.append("],");
      names(value, out);
      out.append(']');
    }

    /** Writes the names of the constructor arguments; none where Scala does not keep them. */
    private void names(Object value, StringBuilder out) {
      if (!opened) {
        out.append("null");
        return;
      }
      int before = out.length();
      try {
        java.lang.reflect.Method name =
            value.getClass().getMethod("productElementName", new Class[] {Integer.TYPE});
        out.append('[');
        for (int i = 0; i < ((scala.Product) value).productArity(); i++) {
          if (i > 0) out.append(',');
          text((String) name.invoke(value, new Object[] {Integer.valueOf(i)}), out);
        }
      } catch (Exception none) {
        out.setLength(before);
        out.append('[');
      }
      out.append(']');
    }

    /** Returns the method at the start of a path; null if the class has none. */
    static java.lang.reflect.Method method(Class of, String path) {
      try {
        java.lang.reflect.Method found = of.getMethod(path.split("\\.")[0], new Class[0]);
        found.setAccessible(true);
        return found;
      } catch (Exception none) {
        return null;
      }
    }

    private static String jar(Class of) {
      java.security.CodeSource source = of.getProtectionDomain().getCodeSource();
      return source == null ? "" : source.getLocation().getPath();
    }
  }

  /** One document. */
  static final class Writer {
    private final Rules rules;
    private final java.util.IdentityHashMap numbers = new java.util.IdentityHashMap();
    private final java.util.ArrayList objects = new java.util.ArrayList();
    private final java.util.Map classes = new java.util.HashMap();
    private final StringBuilder ofClasses = new StringBuilder();

    Writer(Rules rules) { this.rules = rules; }

    Object written(Object root) {
      StringBuilder out = new StringBuilder("{\"nodes\":[");
      objects.add(null); // the place of the text
      numbered(root);
      for (int i = 1; i < objects.size(); i++) {
        if (i > 1) out.append(',');
        node(objects.get(i), out);
      }
      out.append("],\"classes\":[").append(ofClasses).append("]}");
      objects.set(0, out.toString());
      return objects;
    }

    private Integer numbered(Object value) {
      Integer number = (Integer) numbers.get(value);
      if (number == null) {
        number = Integer.valueOf(objects.size());
        numbers.put(value, number);
        objects.add(value);
      }
      return number;
    }

    private Known known(Object value) {
      Class of = value.getClass();
      Known known = (Known) classes.get(of);
      if (known == null) {
        if (!classes.isEmpty()) ofClasses.append(',');
        known = new Known(value, rules, ofClasses);
        known.number = classes.size();
        classes.put(of, known);
      }
      return known;
    }

    private void node(Object value, StringBuilder out) {
      Known known = known(value);
      out.append('[').append(known.number).append(',');
      out.append(System.identityHashCode(value)).append(',');
      int before = out.length();
      try {
        elements(value, known, out);
      } catch (RuntimeException none) {
        out.setLength(before);
        out.append("null");
      }
      for (int i = 0; i < known.asked.size(); i++) {
        out.append(',');
        before = out.length();
        try {
          member(value, known, i, out);
        } catch (Exception none) {
          out.setLength(before);
          out.append("[]"); // it is asked again when it is needed
        }
      }
      out.append(']');
    }

    private void elements(Object value, Known known, StringBuilder out) {
      if (value instanceof org.apache.spark.sql.types.DataType) { // a list of fields, too
        out.append("null");
      } else if (value instanceof Object[]) {
        all(java.util.Arrays.asList((Object[]) value).iterator(), out);
      } else if (value instanceof scala.collection.Iterable) {
        all(((scala.collection.Iterable) value).iterator(), out);
      } else if (value instanceof scala.Option || known.opened) {
        all(((scala.Product) value).productIterator(), out);
      } else {
        out.append("null");
      }
    }

    private void all(Object iterator, StringBuilder out) {
      boolean java = iterator instanceof java.util.Iterator;
      int start = out.length();
      out.append('[');
      boolean first = true;
      while (java ? ((java.util.Iterator) iterator).hasNext()
                  : ((scala.collection.Iterator) iterator).hasNext()) {
        Object value = java ? ((java.util.Iterator) iterator).next()
                            : ((scala.collection.Iterator) iterator).next();
        if (rules.isApart(value)) {
          out.setLength(start);
          out.append("null");
          return;
        }
        if (!first) out.append(',');
        first = false;
        value(value, out);
      }
      out.append(']');
    }

    /** Writes what a method returns, or one method after the other: schema.json. */
    private void member(Object value, Known known, int at, StringBuilder out) throws Exception {
      String[] names = ((String) known.asked.get(at)).split("\\.");
      java.lang.reflect.Method method = (java.lang.reflect.Method) known.methods.get(at);
      Object found = method.invoke(value, new Object[0]);
      for (int i = 1; i < names.length; i++)
        found = Known.method(found.getClass(), names[i]).invoke(found, new Object[0]);
      value(found, out);
    }

    /** Writes a value as py4j passes it on: null, texts, numbers and bytes; else its number. */
    private void value(Object value, StringBuilder out) {
      if (value == null || value instanceof Boolean) {
        out.append(value);
      } else if (value instanceof Long || value instanceof Integer || value instanceof Short
          || value instanceof Byte) {
        out.append(value);
      } else if (value instanceof String || value instanceof Character) {
        text(value.toString(), out);
      } else if (value instanceof Double || value instanceof Float) {
        out.append("{\"float\":\"").append(value).append("\"}");
      } else if (value instanceof java.math.BigDecimal) {
        out.append("{\"decimal\":\"").append(value).append("\"}");
      } else if (value instanceof byte[]) {
        String encoded = java.util.Base64.getEncoder().encodeToString((byte[]) value);
        out.append("{\"bytes\":\"").append(encoded).append("\"}");
      } else {
        out.append('[').append(numbered(value)).append(']');
      }
    }
  }

  /** Writes a JSON text; ASCII alone, so half a pair of UTF-16 arrives as what it is. */
  static void text(String value, StringBuilder out) {
    out.append('"');
    for (int i = 0; i < value.length(); i++) {
      char c = value.charAt(i);
      if (c == '"' || c == '\\') out.append('\\').append(c);
      else if (c >= ' ' && c < 127) out.append(c);
      else {
        String digits = Integer.toHexString(c);
        out.append("\\u").append("0000".substring(digits.length())).append(digits);
      }
    }
    out.append('"');
  }
}
