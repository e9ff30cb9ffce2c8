// Command fleet measures ration web --fleet with made-up machines, which this process serves with the handler of
// ration web:
//
//	go run ./check/fleet -machines 1000 -for 60s
//
// It prints how long it took until all machines were read, how long the page takes to arrive, and how much of one
// processor and memory ration web takes while a page is open.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"ration/check/fleet/sim"
	"ration/internal/fleet"
)

func main() {
	program := flag.String("ration", "bin/ration", "the `program` to measure")
	machines := flag.Int("machines", 1000, "how many machines")
	span := flag.Duration("for", time.Minute, "how long to measure")
	serve := flag.Bool("serve", false, "print the page's address, and serve until Ctrl-C instead of measuring")
	flag.Parse()
	if err := run(*program, *machines, *span, *serve); err != nil {
		fmt.Fprintln(os.Stderr, "fleet:", err)
		os.Exit(1)
	}
}

func run(program string, machines int, span time.Duration, serve bool) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	made, err := sim.Start(ctx, machines)
	if err != nil {
		return err
	}
	folder, err := os.MkdirTemp("", "fleet")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	args, err := made.Files(folder)
	if err != nil {
		return err
	}
	begun := time.Now()
	cmd := exec.Command(program, append([]string{"web", "--json", "--listen", "127.0.0.1:0"}, args...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return err
	}
	defer func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait() // it has been asked to end
	}()
	var page struct{ URL string }
	if err := json.NewDecoder(out).Decode(&page); err != nil {
		return err
	}
	if serve {
		fmt.Println(page.URL)
		select {}
	}
	base, token, _ := strings.Cut(page.URL, "?token=")
	if err := untilUp(base, token, machines); err != nil {
		return err
	}
	fmt.Printf("%d machines were read after %.1f s, with %.1f s of a processor\n", machines, time.Since(begun).Seconds(), cpu(cmd.Process.Pid).Seconds())
	return measure(cmd.Process.Pid, base, token, span, made)
}

// get asks for a path of the page.
func get(base, path, token string) (*http.Response, error) {
	r, err := http.NewRequest(http.MethodGet, base+path, nil)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Authorization", "Bearer "+token)
	return http.DefaultClient.Do(r)
}

// untilUp waits until all machines answer.
func untilUp(base, token string, machines int) error {
	for {
		answer, err := get(base, "v1/fleet", token)
		if err != nil {
			return err
		}
		var state fleet.State
		err = json.NewDecoder(answer.Body).Decode(&state)
		_ = answer.Body.Close()
		if err != nil {
			return err
		}
		up := 0
		for _, m := range state.Machines {
			if m.State == fleet.Up {
				up++
			}
		}
		if up == machines {
			return nil
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func measure(pid int, base, token string, span time.Duration, made *sim.Sim) error {
	var times []time.Duration
	size := 0
	for range 20 {
		begun := time.Now()
		answer, err := get(base, "", token)
		if err != nil {
			return err
		}
		text, err := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		if err != nil {
			return err
		}
		times, size = append(times, time.Since(begun)), len(text)
		time.Sleep(200 * time.Millisecond)
	}
	slices.Sort(times)
	fmt.Printf("the page of %d kB arrives after %.0f ms (median of %d), %.0f ms at most\n", size/1000, ms(times[len(times)/2]), len(times), ms(times[len(times)-1]))
	answer, err := get(base, "stream", token)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	messages, bytes := 0, 0
	go func() {
		lines := bufio.NewReader(answer.Body)
		for {
			text, err := lines.ReadString('\n')
			if err != nil {
				return
			}
			if bytes += len(text); strings.HasPrefix(text, "data:") {
				messages++
			}
		}
	}()
	time.Sleep(5 * time.Second) // the first message has the whole page
	before, at, sent := cpu(pid), time.Now(), made.Lines.Load()
	time.Sleep(span)
	used, wall := cpu(pid)-before, time.Since(at)
	fmt.Printf("with a page open: %.1f %% of one processor over %.0f s; the machines sent %.0f lines a second; %d MiB resident\n",
		100*used.Seconds()/wall.Seconds(), wall.Seconds(), float64(made.Lines.Load()-sent)/wall.Seconds(), resident(pid)>>20)
	return nil
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// cpu returns the processor time of a process, from /proc.
func cpu(pid int) time.Duration {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0
	}
	user, _ := strconv.Atoi(fields[11])
	system, _ := strconv.Atoi(fields[12])
	const tick = 10 * time.Millisecond // USER_HZ
	return time.Duration(user+system) * tick
}

// resident returns the memory of a process.
func resident(pid int) int {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	fields := strings.Fields(string(text))
	if len(fields) < 2 {
		return 0
	}
	pages, _ := strconv.Atoi(fields[1])
	return pages * os.Getpagesize()
}
