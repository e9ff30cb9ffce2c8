package cli

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	"ration/check/harness/cuda"
	"ration/check/observer"
	"ration/check/testenv"
	"ration/internal/abi"
	"ration/internal/launch"
	"ration/internal/limit"
	"ration/internal/policy"
	"ration/internal/region"
	"ration/internal/sleep"
)

// underRace is set if the race detector is built in.
var underRace bool

func TestMain(m *testing.M) {
	commands := map[string]func(){
		"ration":  func() { dieAtStep(); os.Exit(mainWithSchema()) },
		"split":   func() { agentUser = readerOfTests; os.Exit(Main(os.Args[1:], os.Stdout, os.Stderr)) },
		"whole":   func() { agentUser = noReader; os.Exit(Main(os.Args[1:], os.Stdout, os.Stderr)) },
		"hold":    func() { os.Exit(hold(os.Args[1:])) },
		"hostile": func() { os.Exit(hostile(os.Args[1:])) },

		"asnobody": func() { os.Exit(asUser(append([]string{"65534"}, os.Args[1:]...))) },
		"asuser":   func() { os.Exit(asUser(os.Args[1:])) },
		"socket":   func() { os.Exit(askSocket(os.Args[1:])) },
	}
	if commands[filepath.Base(os.Args[0])] == nil { // those are started in it
		if err := testenv.PrivateMounts(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		// Under nohup, SIGHUP is ignored: commands of the scripts would ignore it as well.
		signal.Notify(make(chan os.Signal, 1), unix.SIGHUP)
	}
	testscript.Main(m, commands)
}

// dieAtStep kills or stops this process at steps of the keeper's, of a command that waits for room, or of one that puts a
// job to sleep. RATION_TEST_DIE=STEP:N kills it the n-th time, STEP:N:stop stops it, STEP:N:slow delays what it does there;
// there may be several, after commas.
func dieAtStep() {
	type at struct {
		left   int
		signal syscall.Signal
	}
	ends := map[string]*at{}
	for end := range strings.SplitSeq(os.Getenv("RATION_TEST_DIE"), ",") {
		part := strings.Split(end, ":")
		if len(part) < 2 {
			continue
		}
		n, _ := strconv.Atoi(part[1])
		ends[part[0]] = &at{n, syscall.SIGKILL}
		if len(part) > 2 {
			ends[part[0]].signal = map[string]syscall.Signal{"stop": syscall.SIGSTOP}[part[2]]
		}
	}
	if len(ends) == 0 {
		return
	}
	step := func(name string) {
		end := ends[name]
		if end == nil {
			return
		}
		switch end.left--; {
		case end.left == 0 && end.signal == 0:
			time.Sleep(time.Second) // the others go on
		case end.left == 0:
			// To this thread: it gets no further, whichever thread would take the signal otherwise.
			runtime.LockOSThread()
			_ = unix.Tgkill(os.Getpid(), unix.Gettid(), end.signal)
		}
	}
	policy.OnStep(step)
	launch.OnStep(step)
	sleep.OnStep(step)
}

func TestScripts(t *testing.T) {
	runScripts(t, "testdata/script", func(*testscript.Env) error { return nil })
}

// runScripts runs the scripts of a folder, each with a folder of jobs of its own.
func runScripts(t *testing.T, dir string, setUp func(*testscript.Env) error) {
	conditions := map[string]func() bool{
		"race":    func() bool { return underRace },
		"root":    func() bool { return os.Geteuid() == 0 },
		"host":    region.OnHost,
		"mounts":  mayMount,
		"library": func() bool { return cuda.Built() == nil },
		"policy":  func() bool { return mayHavePolicy(t) },
		"fuse":    func() bool { return mayMountFUSE(t) },
		"tenant": func() bool {
			return os.Geteuid() == 0 && exec.Command("su", "nobody", "-s", "/bin/sh", "-c", "true").Run() == nil
		},
		"driver": func() bool {
			out, err := exec.Command("ldconfig", "-p").Output()
			return err == nil && strings.Contains(string(out), "libcuda.so.1")
		},
	}
	testscript.Run(t, testscript.Params{
		Dir: dir,
		Setup: func(env *testscript.Env) error {
			env.Setenv("RATION_DIR", env.Getenv("WORK")+"/jobs")
			env.Setenv("GORACE", os.Getenv("GORACE"))
			wrong := env.Getenv("WORK") + "/schema-errors"
			env.Setenv(envSchemaErrors, wrong)
			env.Defer(func() {
				if text, err := os.ReadFile(wrong); err == nil { // also of a command in a pipe
					t.Errorf("%s", text)
				}
			})
			return setUp(env)
		},
		Condition: func(cond string) (bool, error) {
			if is, known := conditions[cond]; known {
				return is(), nil
			}
			return false, fmt.Errorf("unknown condition %q", cond)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": taking(2, exits), "json": taking(1, checkJSON), "limits": taking(2, writeLimits), "patch": taking(3, patch), "tenant": taking(0, allowTenant),
			"total": taking(3, recordTotal), "waitevent": taking(1, waitEvent), "waitfile": taking(1, waitFile), "word": taking(3, writeWord)},
	})
}

// taking makes a command of scripts that takes at least so many arguments, and no !.
func taking(least int, run func(*testscript.TestScript, []string)) func(*testscript.TestScript, bool, []string) {
	return func(ts *testscript.TestScript, neg bool, args []string) {
		if neg || len(args) < least {
			ts.Fatalf("it takes %d arguments, and no !", least)
		}
		run(ts, args)
	}
}

// exits STATUS COMMAND... runs a command and checks its exit status.
func exits(ts *testscript.TestScript, args []string) {
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got, exit := 0, (*exec.ExitError)(nil)
	switch err := ts.Exec(args[1], args[2:]...); {
	case errors.As(err, &exit):
		got = exit.ExitCode()
	case err != nil:
		ts.Fatalf("%v", err)
	}
	if got != want {
		ts.Fatalf("exit status %d, want %d", got, want)
	}
}

// json COMMAND [FILE] checks that the last standard output, or FILE, is one JSON value of the type
// that this command prints, by its schema and without fields that the type does not have.
func checkJSON(ts *testscript.TestScript, args []string) {
	if outputs[args[0]] == nil {
		ts.Fatalf("no command %s prints JSON", args[0])
	}
	text := []byte(ts.ReadFile(append(args[1:], "stdout")[0]))
	ts.Check(checkSchema(args[0], text))
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	ts.Check(dec.Decode(reflect.New(reflect.TypeOf(outputs[args[0]])).Interface()))
	if dec.More() {
		ts.Fatalf("more than one value")
	}
}

// patch FILE OFFSET HEX overwrites bytes of a file.
func patch(ts *testscript.TestScript, args []string) {
	at, err := strconv.ParseInt(args[1], 0, 64)
	ts.Check(err)
	b, err := hex.DecodeString(args[2])
	ts.Check(err)
	f, err := os.OpenFile(ts.MkAbs(args[0]), os.O_WRONLY, 0)
	ts.Check(err)
	_, err = f.WriteAt(b, at)
	ts.Check(errors.Join(err, f.Close()))
}

// word REGION VALUE FIELD... writes a word of a region, which is named by the layout's fields.
func writeWord(ts *testscript.TestScript, args []string) {
	value, err := strconv.ParseUint(args[1], 0, 64)
	ts.Check(err)
	var field []any
	for _, a := range args[2:] {
		if i, err := strconv.Atoi(a); err == nil {
			field = append(field, i)
		} else {
			field = append(field, a)
		}
	}
	f, err := os.OpenFile(ts.MkAbs(args[0]), os.O_WRONLY, 0)
	ts.Check(err)
	_, err = f.WriteAt(binary.LittleEndian.AppendUint64(nil, value), observer.Offset(field...))
	ts.Check(errors.Join(err, f.Close()))
}

// waitfile PATTERN waits until a file exists.
func waitFile(ts *testscript.TestScript, args []string) {
	for range 6000 {
		if found, err := filepath.Glob(ts.MkAbs(args[0])); err == nil && len(found) > 0 {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	ts.Fatalf("%s did not appear", args[0])
}

// hold REGION LIMIT CONTEXT DATA [READY [NAME [ASK...]]] is a process that joins a job
// and holds memory. It asks for more, or returns some if ASK begins with a minus, says what
// it has of device 0's time if ASK is compute=STATE,SLICE,CONTEXTS,USED,WAITED, makes the
// file READY and waits to be killed; without READY it ends without leaving.
func hold(args []string) int {
	size := func(i int) uint64 {
		n, err := limit.ParseSize(args[i])
		if err != nil {
			panic(err)
		}
		return uint64(n)
	}
	return exitWith(func() error {
		var opt region.Options
		opt.Limits.Memory[0] = abi.MakeLimit(size(1))
		r, err := region.Open(args[0], opt)
		if err != nil {
			return err
		}
		name := "hold"
		if len(args) > 5 {
			name = args[5]
		}
		// As the kernel has it, too: what a slot says by itself is not believed.
		if err := os.WriteFile("/proc/self/comm", []byte(name), 0); err != nil {
			return err
		}
		s, err := r.Claim(name)
		if err != nil {
			return err
		}
		if err := errors.Join(s.Charge(0, abi.Context, size(2)), s.Charge(0, abi.Data, size(3))); err != nil {
			return err
		}
		for i := 6; i < len(args); i++ {
			if compute, is := strings.CutPrefix(args[i], "compute="); is {
				if err := publishCompute(args[0], s.Index(), compute); err != nil {
					return err
				}
				continue
			}
			if back, is := strings.CutPrefix(args[i], "-"); is {
				args[i] = back
				if err := s.Return(0, abi.Data, size(i)); err != nil {
					return err
				}
				continue
			}
			if err := s.Charge(0, abi.Data, size(i)); err != nil && !errors.Is(err, region.ErrRefused) {
				return err
			}
		}
		if len(args) > 4 {
			if err := os.WriteFile(args[4], nil, 0o600); err != nil {
				return err
			}
			time.Sleep(10 * time.Minute)
		}
		return nil
	}())
}

// exitWith returns the exit status of a program that ends with an error, which it prints.
func exitWith(err error) int {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}
