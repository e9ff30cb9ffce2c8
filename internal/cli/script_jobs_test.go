package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"ration/check/observer"
	"ration/internal/abi"
	"ration/internal/agent"
	"ration/internal/job"
	"ration/internal/limit"
	"ration/internal/region"
	"ration/machine"
)

// limits REGION SIZE writes a limits file with a limit on device 0 beside a region.
func writeLimits(ts *testscript.TestScript, args []string) {
	size, err := limit.ParseSize(args[1])
	ts.Check(err)
	var l region.Limits
	l.Memory[0] = abi.MakeLimit(uint64(size))
	ts.Check(region.WriteLimitsFile(ts.MkAbs(args[0]), l))
}

// total REGION DEVICE BYTES records the size of a device in a region, as a process of
// the job does.
func recordTotal(ts *testscript.TestScript, args []string) {
	device, err := strconv.Atoi(args[1])
	ts.Check(err)
	bytes, err := strconv.ParseUint(args[2], 10, 64)
	ts.Check(err)
	r, err := region.Open(ts.MkAbs(args[0]), region.Options{NoCreate: true})
	ts.Check(err)
	ts.Check(errors.Join(r.NameDevice(device, [2]uint64{1, 1}, bytes), r.Close()))
}

// keepOpen has files that are not to be closed: that would drop this process's locks of them.
var keepOpen []*os.File

// publishCompute writes what this process has of device 0's time, as the library does: the
// state and the microseconds of its slice, contexts with work, nanoseconds used and waited.
func publishCompute(path string, slot int, text string) error {
	var n [5]uint64
	if _, err := fmt.Sscanf(text, "%d,%d,%d,%d,%d", &n[0], &n[1], &n[2], &n[3], &n[4]); err != nil {
		return err
	}
	// For good: these scripts take longer than a sign of work counts.
	work := abi.MakeWork(1, int(n[2]), n[2] > 0)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	keepOpen = append(keepOpen, f)
	return observer.WriteCompute(f, 0, slot, region.ProcessCompute{Work: work, Slice: abi.MakeSlice(n[1], int(n[0])), Used: n[3], Waited: n[4]})
}

// tenant lets other users read this script's jobs, and run the programs.
func allowTenant(ts *testscript.TestScript, args []string) {
	program, err := exec.LookPath("ration")
	ts.Check(err)
	ts.Check(errors.Join(openParents(ts.MkAbs(".")), openParents(filepath.Dir(program))))
	ts.Check(filepath.WalkDir(ts.MkAbs("jobs"), func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		mode := fs.FileMode(0o644)
		if d.IsDir() {
			mode = 0o755
		}
		return os.Chmod(path, mode)
	}))
}

// openParents lets other users enter a temporary folder.
func openParents(dir string) (err error) {
	for ; strings.HasPrefix(dir, os.TempDir()+string(filepath.Separator)); dir = filepath.Dir(dir) {
		err = errors.Join(err, os.Chmod(dir, 0o755))
	}
	return err
}

// asuser UID COMMAND... becomes a command of another user, and asnobody COMMAND... one of nobody.
func asUser(args []string) int {
	uid, err := strconv.Atoi(args[0])
	path, err2 := exec.LookPath(args[1])
	if err = errors.Join(err, err2); err == nil {
		err = errors.Join(syscall.Setgroups(nil), syscall.Setgid(uid), syscall.Setuid(uid))
	}
	if err == nil {
		err = syscall.Exec(path, args[1:], os.Environ())
	}
	fmt.Fprintln(os.Stderr, err)
	return 99
}

// waitevent KIND waits until the agent of this script's folder knows an event of a kind.
func waitEvent(ts *testscript.TestScript, args []string) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	found := errors.New("found")
	client, err := agent.NewClient(filepath.Join(ts.Getenv("RATION_DIR"), job.AgentSocket)), error(syscall.ECONNREFUSED)
	for errors.Is(err, syscall.ECONNREFUSED) && ctx.Err() == nil { // the socket has its name before it listens
		err = client.Events(ctx, true, func(e machine.Event) error {
			if e.Kind == args[0] {
				return found
			}
			return nil
		})
	}
	if !errors.Is(err, found) {
		ts.Fatalf("no event %s: %v", args[0], err)
	}
}

// socket SOCKET PATH prints what an agent answers.
func askSocket(args []string) int {
	client := http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", args[0]) }}}
	answer, err := client.Get("http://agent" + args[1])
	if err == nil {
		if strings.HasSuffix(args[1], "/watch") { // it goes on: the first line
			var line string
			line, err = bufio.NewReader(answer.Body).ReadString('\n')
			fmt.Print(line)
		} else {
			_, err = io.Copy(os.Stdout, answer.Body)
		}
		_ = answer.Body.Close()
	}
	return exitWith(err)
}
