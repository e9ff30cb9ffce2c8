package node

import (
	"bufio"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"ration/check/expect"
	"ration/kube/claim"
	"ration/machine"
)

// prepareUntilKilled prepares and unprepares a claim, and kills itself at a point.
func prepareUntilKilled(point string) int {
	n, err := nodeIn(os.Args[1])
	n.Reached = func(at string) {
		if at == point {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	}
	if err == nil && os.Getenv(envResize) != "" {
		err = resizeUntilKilled(n)
		fmt.Fprintln(os.Stderr, "not killed:", err)
		return 1
	}
	if err == nil {
		_, err = n.Prepare(n.plan(uid, 10*gib))
	}
	if err == nil {
		err = n.Unprepare(uid)
	}
	fmt.Fprintln(os.Stderr, "not killed:", err)
	return 1
}

// prepareForEver prepares and unprepares a claim again and again.
func prepareForEver() int {
	n, err := nodeIn(os.Args[1])
	for err == nil {
		if _, err = n.Prepare(n.plan(uid, 10*gib)); err == nil {
			fmt.Println("prepared")
			err = n.Unprepare(uid)
		}
	}
	fmt.Fprintln(os.Stderr, err)
	return 1
}

// The plugin is killed at whatever it does, inside the steps too, again and again, each time after what the last one left; the next finds a way on.
func TestKilledAnywhere(t *testing.T) {
	n := newNode(t)
	random := rand.New(rand.NewPCG(1, 2))
	for round := range 40 {
		child := exec.Command(os.Args[0], filepath.Dir(n.State))
		child.Env = append(os.Environ(), envKillAt+"="+anywhere)
		out, err := child.StdoutPipe()
		expect.OK(t, err)
		var errs strings.Builder
		child.Stderr = &errs
		expect.OK(t, child.Start())
		line, err := bufio.NewReader(out).ReadString('\n') // it has gone on from where the last one was
		if err != nil {
			_ = child.Wait()
			t.Fatalf("round %d: %q, %v\n%s", round, line, err, errs.String())
		}
		time.Sleep(time.Duration(random.IntN(100_000)) * time.Microsecond) // anywhere: what it does then does not matter
		_ = child.Process.Kill()
		_ = child.Wait()
	}
	expect.OK(t, n.Unprepare(uid))
	_, err := n.Sweep(func(claim.Plan) (bool, error) { return true, nil })
	expect.OK(t, err) // files that were being written
	checkNothingLeft(t, n)
}

// Wherever the plugin is killed, the kubelet's next call finds a way on, and nothing stays behind:
// whether the kubelet comes back, or forgets the claim.
func TestKilledAtEachPoint(t *testing.T) {
	for _, point := range Points {
		for name, next := range map[string]func(t *testing.T, n *Node){
			"prepared again": func(t *testing.T, n *Node) {
				_, err := n.Prepare(n.plan(uid, 10*gib))
				expect.OK(t, err)
				j, err := machine.ReadJob(JobPrefix + uid)
				expect.True(t, err == nil && j.Devices[0].Limit == 10*gib, j, err)
				n.readSpec(t, uid)
				expect.OK(t, n.Unprepare(uid))
			},
			"unprepared": func(t *testing.T, n *Node) {
				expect.OK(t, n.Unprepare(uid))
			},
			"forgotten": func(t *testing.T, n *Node) {
				_, err := n.Sweep(func(p claim.Plan) (bool, error) { return p.UID == uid, nil })
				expect.OK(t, err)
			},
		} {
			t.Run(point+", "+name, func(t *testing.T) {
				n := newNode(t)
				child := exec.Command(os.Args[0], filepath.Dir(n.State))
				child.Env = append(os.Environ(), envKillAt+"="+point)
				out, err := child.CombinedOutput()
				var exit *exec.ExitError
				expect.Must(t, errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL,
					"it was not killed", err, out)
				next(t, n)
				checkNothingLeft(t, n)
			})
		}
	}
}
