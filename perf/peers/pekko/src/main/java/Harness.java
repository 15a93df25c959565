import static java.nio.charset.StandardCharsets.UTF_8;

import com.typesafe.config.Config;
import com.typesafe.config.ConfigFactory;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.pekko.actor.ActorRef;
import org.apache.pekko.actor.ActorSystem;
import org.apache.pekko.actor.AddressFromURIString;
import org.apache.pekko.actor.Props;
import org.apache.pekko.cluster.Cluster;
import org.apache.pekko.cluster.sharding.ClusterSharding;
import org.apache.pekko.cluster.sharding.ClusterShardingSettings;

/**
 * Apache Pekko: cluster sharding over Artery (TCP, or Aeron over UDP).
 *
 * <p>Tuned: all dispatchers merged into one pool of one thread (each process on a core of its own) or two (unpinned), which saves hand-overs between
 * pools; messages carry the key of their entity, so that the region needs no envelope; they are written straight to the buffers of Artery
 * ({@link Wire}); the driver is an actor, because completing a future of `ask` costs a hand-over and on two cores a thread; queues of Artery are as
 * long as what may be on its way; classic actors, which are what the typed ones wrap. JIT and sharding are warmed up for seconds before anything is
 * measured. Local actors are measured twice: through the region, and by a reference to each (the row "direct").
 */
public final class Harness {
  static final int ACTORS = 1000;
  static final int POPULATION = 250_000;

  static Config config(String transport, int pool, String role) {
    return ConfigFactory.parseString(
            """
            pekko {
              loglevel = OFF
              stdout-loglevel = OFF
              jvm-exit-on-fatal-error = on
              log-dead-letters = off
              actor {
                provider = cluster
                allow-java-serialization = off
                internal-dispatcher = "pekko.actor.default-dispatcher"
                default-dispatcher {
                  executor = "fork-join-executor"
                  fork-join-executor { parallelism-min = %1$d, parallelism-max = %1$d, parallelism-factor = 1.0 }
                  throughput = 64
                }
                serializers.wire = "Wire"
                serialization-bindings { "Msg" = wire }
              }
              remote {
                use-dispatcher = "pekko.actor.default-dispatcher"
                artery {
                  transport = %2$s
                  canonical { hostname = "127.0.0.1", port = 0 }
                  advanced {
                    use-dispatcher = "pekko.actor.default-dispatcher"
                    use-control-stream-dispatcher = "pekko.actor.default-dispatcher"
                    outbound-message-queue-size = 65536
                    aeron { log-aeron-counters = off, idle-cpu-level = 5 }
                  }
                }
              }
              cluster {
                roles = ["%3$s"]
                jmx.enabled = off
                gossip-interval = 200ms
                leader-actions-interval = 200ms
                sharding {
                  number-of-shards = 64
                  passivation.strategy = none
                  retry-interval = 200ms
                  buffer-size = 300000
                }
              }
              coordinated-shutdown.exit-jvm = off
            }
            """
                .formatted(pool, transport.equals("tcp") ? "tcp" : "aeron-udp", role))
        .withFallback(ConfigFactory.load());
  }

  static ActorRef host(ActorSystem system) {
    return ClusterSharding.get(system)
        .start("counter", Props.create(Counter.class, Counter::new), ClusterShardingSettings.create(system).withRole("host"), new Extractor());
  }

  final String peer;
  final String version = ActorSystem.Version();
  final String variant;
  final double secs;

  Harness(String peer, double secs, int pool) {
    this.peer = peer;
    this.secs = secs;
    variant = pool == 1 ? "1 thread" : pool + " threads";
  }

  void line(String peer, String measurement, String rest) {
    System.out.printf("{\"peer\":\"%s\",\"version\":\"%s\",\"variant\":\"%s\",\"measurement\":\"%s\",%s}%n", peer, version, variant, measurement, rest);
    System.out.flush();
  }

  /** A measurement begins: what others used before is not its concern. */
  static void begin() {
    System.out.println("{\"begin\":true}");
    System.out.flush();
  }

  void value(String peer, String measurement, String unit, double value, long n) {
    line(peer, measurement, "\"unit\":\"%s\",\"value\":%.1f,\"p50\":null,\"p99\":null,\"p999\":null,\"n\":%d".formatted(unit, value, n));
  }

  static <T> T get(CompletableFuture<T> future) throws Exception {
    return future.get(50, TimeUnit.SECONDS);
  }

  static Driver.Run tell(ActorRef driver, double secs) throws Exception {
    Driver.Tell tell = new Driver.Tell((long) (secs * 1e9));
    driver.tell(tell, ActorRef.noSender());
    return get(tell.done());
  }

  static Driver.Run ask(ActorRef driver, int inFlight, double secs) throws Exception {
    Driver.Ask ask = new Driver.Ask(inFlight, (long) (secs * 1e9));
    driver.tell(ask, ActorRef.noSender());
    return get(ask.done());
  }

  /** Tells, asks, and for other processes asks many at once; each kind of load warms up by itself, and the first waits until all entities are there. */
  void measure(String peer, String prefix, ActorRef driver) throws Exception {
    // Seconds; there is more code on the way to another process.
    double warm = prefix.equals("remote") ? 3 : 2;
    tell(driver, 0.2);
    begin();
    tell(driver, 2 * warm);
    Driver.Run told = tell(driver, secs);
    value(peer, prefix + "-tell", "messages/s", told.perSecond(), told.n());
    begin();
    ask(driver, 128, warm);
    Driver.Run many = ask(driver, 128, secs);
    if (prefix.equals("remote")) {
      latencies(peer, prefix + "-ask-128", many);
    }
    // One at a time there are too few of them to get anything compiled.
    begin();
    ask(driver, 1, warm / 2);
    latencies(peer, prefix + "-ask", ask(driver, 1, secs));
  }

  void latencies(String peer, String measurement, Driver.Run run) {
    line(
        peer,
        measurement,
        "\"unit\":\"asks/s\",\"value\":%.1f,\"p50\":%d,\"p99\":%d,\"p999\":%d,\"n\":%d"
            .formatted(run.perSecond(), run.at(0.5), run.at(0.99), run.at(0.999), run.n()));
  }

  static ActorSystem alone(int pool) throws Exception {
    ActorSystem system = ActorSystem.create("bench", config("tcp", pool, "host"));
    Cluster.get(system).join(Cluster.get(system).selfAddress());
    up(system, 1);
    return system;
  }

  static void up(ActorSystem system, int members) throws Exception {
    CompletableFuture<Void> up = new CompletableFuture<>();
    Cluster.get(system).registerOnMemberUp(() -> up.complete(null));
    get(up);
    while (Cluster.get(system).state().members().size() < members) {
      Thread.sleep(20);
    }
  }

  static ActorRef driver(ActorSystem system, ActorRef[] targets) {
    return system.actorOf(Props.create(Driver.class, () -> new Driver(targets)));
  }

  static ActorRef[] all(ActorRef region) {
    ActorRef[] all = new ActorRef[ACTORS];
    java.util.Arrays.fill(all, region);
    return all;
  }

  void local(int pool) throws Exception {
    ActorSystem system = alone(pool);
    measure(peer, "local", driver(system, all(host(system))));
    ActorRef[] direct = new ActorRef[ACTORS];
    for (int i = 0; i < ACTORS; i++) {
      direct[i] = system.actorOf(Props.create(Counter.class, Counter::new));
    }
    measure(peer + ", direct", "local", driver(system, direct));
  }

  void population(int pool) throws Exception {
    ActorSystem system = alone(pool);
    ActorRef region = host(system);
    ActorRef driver = driver(system, new ActorRef[] {region});
    // Shards, and the compiled code of a start; their entities are others.
    populate(driver, POPULATION, 50_000);
    begin();
    long before = inUse();
    double took = populate(driver, 0, POPULATION);
    value(peer, "memory", "bytes", (double) (inUse() - before) / POPULATION, POPULATION);
    value(peer, "start", "actors/s", POPULATION / took, POPULATION);
  }

  static double populate(ActorRef driver, int from, int n) throws Exception {
    long before = Counter.STARTED.get();
    long began = System.nanoTime();
    driver.tell(new Driver.Populate(from, n), ActorRef.noSender());
    while (Counter.STARTED.get() - before < n) {
      if (System.nanoTime() - began > 50_000_000_000L) {
        throw new IllegalStateException("%d of %d entities were started".formatted(Counter.STARTED.get() - before, n));
      }
      Thread.sleep(0, 100_000);
    }
    return (System.nanoTime() - began) / 1e9;
  }

  static long inUse() throws Exception {
    for (int i = 0; i < 3; i++) {
      System.gc();
      Thread.sleep(50);
    }
    return Runtime.getRuntime().totalMemory() - Runtime.getRuntime().freeMemory();
  }

  static void serve(String transport, int pool) throws Exception {
    ActorSystem system = ActorSystem.create("bench", config(transport, pool, "host"));
    Cluster cluster = Cluster.get(system);
    cluster.join(cluster.selfAddress());
    up(system, 1);
    host(system);
    System.out.println(cluster.selfAddress());
    System.out.flush();
    System.in.readAllBytes();
  }

  void remote(String transport, int pool) throws Exception {
    List<String> command = new ArrayList<>();
    if (pool == 1 && Runtime.getRuntime().availableProcessors() == 1 && System.getenv("SERVER_CORE") != null) {
      command.addAll(List.of("taskset", "-c", System.getenv("SERVER_CORE")));
    }
    command.add(System.getProperty("java.home") + "/bin/java");
    command.addAll(ManagementFactory.getRuntimeMXBean().getInputArguments());
    command.addAll(List.of("-cp", System.getProperty("java.class.path"), "Harness", peer, transport, "serve", "0", String.valueOf(pool)));
    Process server = new ProcessBuilder(command).redirectError(ProcessBuilder.Redirect.INHERIT).start();
    try {
      String address = new BufferedReader(new InputStreamReader(server.getInputStream(), UTF_8)).readLine();
      if (address == null) {
        throw new IllegalStateException("the other process ended without a word");
      }
      ActorSystem system = ActorSystem.create("bench", config(transport, pool, "client"));
      Cluster.get(system).join(AddressFromURIString.parse(address));
      up(system, 2);
      ActorRef region = ClusterSharding.get(system).startProxy("counter", java.util.Optional.of("host"), new Extractor());
      measure(peer, "remote", driver(system, all(region)));
    } finally {
      // It ends with its standard input; waiting for it makes its CPU time this process's.
      server.getOutputStream().close();
      if (!server.waitFor(5, TimeUnit.SECONDS)) {
        server.destroyForcibly().waitFor();
      }
    }
  }

  public static void main(String[] args) {
    int pool = Integer.parseInt(args[4]);
    Harness harness = new Harness(args[0], Double.parseDouble(args[3]), pool);
    int status = 0;
    try {
      switch (args[2]) {
        case "local" -> harness.local(pool);
        case "remote" -> harness.remote(args[1], pool);
        case "population" -> harness.population(pool);
        case "serve" -> serve(args[1], pool);
        default -> throw new IllegalArgumentException(args[2] + " is no group");
      }
    } catch (Throwable failure) {
      System.err.println(failure);
      status = 2;
    }
    // Without the leaving of the cluster, which takes seconds.
    Runtime.getRuntime().halt(status);
  }
}
