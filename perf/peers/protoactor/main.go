// Proto.Actor for Go: actors scheduled by goroutines, remote ones over gRPC.
//
// Tuned: one and as many threads as there are cores are tried (GOMAXPROCS); actors are reached by their PID, which spares the look-up of virtual
// actors; questions carry no timer (a negative timeout); messages of one process are plain structs, those between processes well-known types of
// protobuf, whose marshalling is generated (BytesValue for a question, Any without a type for a note); endpoints write batches of
// up to 8,192 messages, as each batch names all of its actors anew (by default 1,000); nothing is logged; garbage is collected half as often as by default (GOGC 200). Mailboxes are the unbounded ones it has by default.
package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/asynkron/protoactor-go/remote"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const (
	actors     = 1000
	population = 250_000
	// Messages between two questions how far the actors have come, and questions that may be open.
	markEvery = 8192
	marksOpen = 3
	stride    = 64
	// Messages that an endpoint writes at a time.
	batch = 8192
	warm  = 0.3
)

type payload [8]uint64

type note struct{ payload payload }
type echo struct{ payload payload }
type count struct{}

var started atomic.Uint64

// counter counts what it is told and returns what it is asked.
type counter struct{ notes uint64 }

func (c *counter) handle() {
	if c.notes == 0 {
		started.Add(1)
	}
	c.notes++
}

func (c *counter) Receive(ctx actor.Context) {
	switch m := ctx.Message().(type) {
	case *note:
		c.handle()
	case *echo:
		ctx.Respond(m)
	case *count:
		ctx.Respond(c.notes)
	case *anypb.Any:
		c.handle()
	case *wrapperspb.BytesValue:
		ctx.Respond(m)
	case *emptypb.Empty:
		ctx.Respond(wrapperspb.UInt64(c.notes))
	}
}

func bytesOf(p payload) []byte {
	b := make([]byte, 0, 64)
	for _, word := range p {
		b = binary.LittleEndian.AppendUint64(b, word)
	}
	return b
}

// peer is an actor, from here or from afar.
type peer struct {
	root   *actor.RootContext
	pid    *actor.PID
	remote bool
}

func (p *peer) tell(m payload) {
	if p.remote {
		p.root.Send(p.pid, &anypb.Any{Value: bytesOf(m)})
	} else {
		p.root.Send(p.pid, &note{m})
	}
}

func (p *peer) ask(m payload) error {
	var question any = &echo{m}
	if p.remote {
		question = &wrapperspb.BytesValue{Value: bytesOf(m)}
	}
	answer, err := p.root.RequestFuture(p.pid, question, -1).Result()
	if err != nil {
		return err
	}
	var first uint64
	switch a := answer.(type) {
	case *echo:
		first = a.payload[0]
	case *wrapperspb.BytesValue:
		first = binary.LittleEndian.Uint64(a.Value)
	default:
		return fmt.Errorf("an answer of type %T", answer)
	}
	if first != m[0] {
		return fmt.Errorf("request %d got the answer of %d", m[0], first)
	}
	return nil
}

func (p *peer) count() *actor.Future {
	if p.remote {
		return p.root.RequestFuture(p.pid, &emptypb.Empty{}, 30*time.Second)
	}
	return p.root.RequestFuture(p.pid, &count{}, 30*time.Second)
}

func counted(f *actor.Future) (uint64, error) {
	answer, err := f.Result()
	switch a := answer.(type) {
	case uint64:
		return a, err
	case *wrapperspb.UInt64Value:
		return a.Value, err
	}
	return 0, errors.Join(err, fmt.Errorf("a count of type %T", answer))
}

func handled(all []peer) (sum uint64, err error) {
	for some := range slices.Chunk(all, 64) {
		var asked []*actor.Future
		for i := range some {
			asked = append(asked, some[i].count())
		}
		for _, f := range asked {
			n, err := counted(f)
			if err != nil {
				return 0, err
			}
			sum += n
		}
	}
	return sum, nil
}

func filled(i uint64) (p payload) {
	for at := range p {
		p[at] = i
	}
	return p
}

func tellFor(all []peer, window time.Duration) (uint64, time.Duration, error) {
	before, err := handled(all)
	if err != nil {
		return 0, 0, err
	}
	began, sent := time.Now(), uint64(0)
	var marks []*actor.Future
	for time.Since(began) < window {
		for range stride {
			p := &all[sent%uint64(len(all))]
			p.tell(filled(sent))
			if sent%markEvery == 0 {
				marks = append(marks, p.count())
				if len(marks) > marksOpen {
					if _, err := counted(marks[0]); err != nil {
						return 0, 0, err
					}
					marks = marks[1:]
				}
			}
			sent++
		}
	}
	// The answers come behind everything told, so that the time ends with the last one handled.
	done, err := handled(all)
	took := time.Since(began)
	if err == nil && done-before != sent {
		err = fmt.Errorf("%d messages were sent and %d handled", sent, done-before)
	}
	return sent, took, err
}

func askFor(all []peer, first, step uint64, began time.Time, window time.Duration) (seen []uint32, err error) {
	for i := first; time.Since(began) < window; i += step {
		sent := time.Now()
		if err := all[i%uint64(len(all))].ask(filled(i)); err != nil {
			return nil, err
		}
		seen = append(seen, uint32(min(time.Since(sent), 4*time.Second)))
	}
	return seen, nil
}

func askMany(all []peer, inFlight int, window time.Duration) ([]uint32, time.Duration, error) {
	began := time.Now()
	var wait sync.WaitGroup
	results, errs := make([][]uint32, inFlight), make([]error, inFlight)
	for at := range inFlight {
		wait.Add(1)
		go func() {
			defer wait.Done()
			results[at], errs[at] = askFor(all, uint64(at), uint64(inFlight), began, window)
		}()
	}
	wait.Wait()
	return slices.Concat(results...), time.Since(began), errors.Join(errs...)
}

type printer struct{ variant string }

func (p printer) line(measurement, rest string) {
	fmt.Printf(`{"peer":"protoactor-go","version":%q,"variant":%q,"measurement":%q,%s}`+"\n", version(), p.variant, measurement, rest)
}

// begin says that a measurement begins: what others used before is not its concern.
func (p printer) begin() { fmt.Println(`{"begin":true}`) }

func (p printer) value(measurement, unit string, value float64, n uint64) {
	p.line(measurement, fmt.Sprintf(`"unit":%q,"value":%.1f,"p50":null,"p99":null,"p999":null,"n":%d`, unit, value, n))
}

func (p printer) latencies(measurement string, seen []uint32, took time.Duration) {
	slices.Sort(seen)
	at := func(q float64) uint32 { return seen[min(len(seen)-1, int(q*float64(len(seen))))] }
	p.line(measurement, fmt.Sprintf(`"unit":"asks/s","value":%.1f,"p50":%d,"p99":%d,"p999":%d,"n":%d`,
		float64(len(seen))/took.Seconds(), at(0.5), at(0.99), at(0.999), len(seen)))
}

func version() string {
	info, _ := debug.ReadBuildInfo()
	for _, dep := range info.Deps {
		if dep.Path == "github.com/asynkron/protoactor-go" {
			// The commit says it all.
			return dep.Version[strings.LastIndex(dep.Version, "-")+1:]
		}
	}
	return "unknown"
}

func measure(print printer, prefix string, all []peer, window time.Duration) error {
	short := time.Duration(float64(window) * warm)
	print.begin()
	if _, _, err := tellFor(all, short); err != nil {
		return err
	}
	sent, took, err := tellFor(all, window)
	if err != nil {
		return err
	}
	print.value(prefix+"-tell", "messages/s", float64(sent)/took.Seconds(), sent)
	for _, inFlight := range []int{1, 128} {
		name := prefix + "-ask"
		if inFlight > 1 {
			if prefix == "local" {
				continue
			}
			name += "-128"
		}
		print.begin()
		if _, _, err := askMany(all, inFlight, short); err != nil {
			return err
		}
		seen, took, err := askMany(all, inFlight, window)
		if err != nil {
			return err
		}
		print.latencies(name, seen, took)
	}
	return nil
}

func system() *actor.ActorSystem {
	return actor.NewActorSystem(actor.WithLoggerFactory(func(*actor.ActorSystem) *slog.Logger {
		return slog.New(slog.NewTextHandler(io.Discard, &slog.HandlerOptions{Level: slog.LevelError + 1}))
	}))
}

func props() *actor.Props {
	return actor.PropsFromProducer(func() actor.Actor { return &counter{} })
}

func startAll(system *actor.ActorSystem, n int) []peer {
	all, props := make([]peer, 0, n), props()
	for range n {
		all = append(all, peer{root: system.Root, pid: system.Root.Spawn(props)})
	}
	return all
}

func populate(system *actor.ActorSystem, n int) []peer {
	before := started.Load()
	all := startAll(system, n)
	for i := range all {
		all[i].tell(payload{})
	}
	for started.Load()-before < uint64(n) {
		runtime.Gosched()
	}
	return all
}

func inUse() uint64 {
	var stats runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc + stats.StackInuse
}

func measurePopulation(print printer) {
	print.begin()
	system := system()
	populate(system, actors)
	before, began := inUse(), time.Now()
	all := populate(system, population)
	took := time.Since(began)
	print.value("memory", "bytes", float64(inUse()-before)/population, population)
	print.value("start", "actors/s", population/took.Seconds(), population)
	runtime.KeepAlive(all)
}

// freePort returns a port that was free a moment ago: a remote asks for its number before it listens.
func freePort() (int, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port, nil
}

func startRemote() (*actor.ActorSystem, int, error) {
	port, err := freePort()
	if err != nil {
		return nil, 0, err
	}
	system := system()
	remote.NewRemote(system, remote.Configure("127.0.0.1", port, remote.WithEndpointWriterBatchSize(batch))).Start()
	return system, port, nil
}

func serve() error {
	system, port, err := startRemote()
	if err != nil {
		return err
	}
	for i := range actors {
		if _, err := system.Root.SpawnNamed(props(), "counter-"+strconv.Itoa(i)); err != nil {
			return err
		}
	}
	fmt.Println(port)
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

func measureRemote(print printer, window time.Duration) error {
	server := exec.Command(os.Args[0], "serve", "0", strconv.Itoa(runtime.GOMAXPROCS(0)))
	server.Stderr = os.Stderr
	stdin, err := server.StdinPipe()
	if err != nil {
		return err
	}
	stdout, err := server.StdoutPipe()
	if err != nil {
		return err
	}
	if err := server.Start(); err != nil {
		return err
	}
	// Ends when its standard input does; waiting for it makes its CPU time this process's.
	defer server.Wait()
	defer stdin.Close()
	port, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		return err
	}
	system, _, err := startRemote()
	if err != nil {
		return err
	}
	address := "127.0.0.1:" + strings.TrimSpace(port)
	var all []peer
	for i := range actors {
		all = append(all, peer{root: system.Root, pid: actor.NewPID(address, "counter-"+strconv.Itoa(i)), remote: true})
	}
	return measure(print, "remote", all, window)
}

func run() error {
	if len(os.Args) < 3 {
		return errors.New("use: GROUP SECS [THREADS]")
	}
	secs, err := strconv.ParseFloat(os.Args[2], 64)
	if err != nil {
		return err
	}
	if len(os.Args) == 3 {
		// Each number of threads in a process of its own.
		flavours := []int{1}
		if runtime.NumCPU() > 1 {
			flavours = append(flavours, runtime.NumCPU())
		}
		for _, n := range flavours {
			again := exec.Command(os.Args[0], os.Args[1], os.Args[2], strconv.Itoa(n))
			again.Stdout, again.Stderr = os.Stdout, os.Stderr
			if err := again.Run(); err != nil {
				return err
			}
		}
		return nil
	}
	threads, err := strconv.Atoi(os.Args[3])
	if err != nil {
		return err
	}
	runtime.GOMAXPROCS(threads)
	debug.SetGCPercent(200)
	print := printer{strconv.Itoa(threads) + " threads"}
	if threads == 1 {
		print.variant = "1 thread"
	}
	window := time.Duration(secs * float64(time.Second))
	switch os.Args[1] {
	case "local":
		return measure(print, "local", startAll(system(), actors), window)
	case "remote":
		return measureRemote(print, window)
	case "population":
		measurePopulation(print)
		return nil
	case "serve":
		return serve()
	}
	return fmt.Errorf("%s is no group", os.Args[1])
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
}
