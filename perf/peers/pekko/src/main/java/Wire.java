import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import org.apache.pekko.serialization.ByteBufferSerializer;
import org.apache.pekko.serialization.SerializerWithStringManifest;

/** Messages to and from the buffers of Artery, without a copy in between. */
public final class Wire extends SerializerWithStringManifest implements ByteBufferSerializer {
  @Override
  public int identifier() {
    return 4711;
  }

  @Override
  public String manifest(Object o) {
    if (o instanceof Msg.Note) {
      return "N";
    }
    if (o instanceof Msg.Echo) {
      return "E";
    }
    if (o instanceof Msg.Echoed) {
      return "R";
    }
    return o instanceof Msg.Count ? "C" : "D";
  }

  @Override
  public void toBinary(Object o, ByteBuffer to) {
    to.order(ByteOrder.LITTLE_ENDIAN);
    if (o instanceof Msg.Note note) {
      words(to.putLong(note.key()), note.words());
    } else if (o instanceof Msg.Echo echo) {
      words(to.putLong(echo.key()), echo.words());
    } else if (o instanceof Msg.Echoed echoed) {
      words(to, echoed.words());
    } else if (o instanceof Msg.Count count) {
      to.putLong(count.key());
    } else {
      to.putLong(((Msg.Counted) o).notes());
    }
  }

  @Override
  public Object fromBinary(ByteBuffer from, String manifest) {
    from.order(ByteOrder.LITTLE_ENDIAN);
    return switch (manifest.charAt(0)) {
      case 'N' -> new Msg.Note(from.getLong(), words(from));
      case 'E' -> new Msg.Echo(from.getLong(), words(from));
      case 'R' -> new Msg.Echoed(words(from));
      case 'C' -> new Msg.Count(from.getLong());
      default -> new Msg.Counted(from.getLong());
    };
  }

  @Override
  public byte[] toBinary(Object o) {
    ByteBuffer to = ByteBuffer.allocate(80);
    toBinary(o, to);
    return java.util.Arrays.copyOf(to.array(), to.position());
  }

  @Override
  public Object fromBinary(byte[] bytes, String manifest) {
    return fromBinary(ByteBuffer.wrap(bytes), manifest);
  }

  private static void words(ByteBuffer to, long[] words) {
    for (long word : words) {
      to.putLong(word);
    }
  }

  private static long[] words(ByteBuffer from) {
    long[] words = new long[8];
    for (int i = 0; i < 8; i++) {
      words[i] = from.getLong();
    }
    return words;
  }
}
