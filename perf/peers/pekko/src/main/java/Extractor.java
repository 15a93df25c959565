import org.apache.pekko.cluster.sharding.ShardRegion;

/** Entity and shard of a message, from tables: no text is made for a message. */
final class Extractor implements ShardRegion.MessageExtractor {
  private static final String[] ENTITIES = new String[2 * Harness.POPULATION];
  private static final String[] SHARDS = new String[64];

  static {
    for (int i = 0; i < ENTITIES.length; i++) {
      ENTITIES[i] = Integer.toString(i);
    }
    for (int i = 0; i < SHARDS.length; i++) {
      SHARDS[i] = Integer.toString(i);
    }
  }

  private static int key(Object message) {
    if (message instanceof Msg.Note note) {
      return (int) note.key();
    }
    if (message instanceof Msg.Echo echo) {
      return (int) echo.key();
    }
    return message instanceof Msg.Count count ? (int) count.key() : -1;
  }

  @Override
  public String entityId(Object message) {
    int key = key(message);
    return key < 0 ? null : ENTITIES[key];
  }

  @Override
  public Object entityMessage(Object message) {
    return message;
  }

  @Override
  public String shardId(Object message) {
    if (message instanceof ShardRegion.StartEntity start) {
      return SHARDS[Integer.parseInt(start.entityId()) & 63];
    }
    int key = key(message);
    return key < 0 ? null : SHARDS[key & 63];
  }
}
