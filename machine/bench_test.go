package machine

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"ration/check/expect"
	"ration/internal/abi"

	"ration/internal/job"
	"ration/internal/region"
)

// envHold names regions in which this program is to hold memory, until its input ends.
const envHold = "RATION_TEST_HOLD"

// envChild says that the program is to start another that does the same.
const envChild = "RATION_TEST_CHILD"

func TestMain(m *testing.M) {
	if path := os.Getenv(envFlood); path != "" {
		if err := flood(path); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if paths := os.Getenv(envHold); paths != "" {
		if err := holdAll(strings.Split(paths, ":")); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func holdAll(paths []string) error {
	for _, path := range paths {
		r, err := region.Open(path, region.Options{})
		if err != nil {
			return err
		}
		s, err := r.Claim("holder")
		if err != nil {
			return err
		}
		if err := s.Charge(0, abi.Data, 1<<20); err != nil {
			return err
		}
	}
	if os.Getenv(envChild) != "" {
		child := exec.Command("sh", "-c", "unset "+envChild+"; \"$0\"", os.Args[0]) // through a process that is not in the job
		child.Stdin = os.Stdin
		stdout, err := child.StdoutPipe()
		if err != nil {
			return err
		}
		if err := child.Start(); err != nil {
			return err
		}
		if line, err := bufio.NewReader(stdout).ReadString('\n'); line != "ready\n" {
			return fmt.Errorf("the child said %q: %w", line, err)
		}
		fmt.Println("ready")
		return child.Wait()
	}
	fmt.Println("ready")
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	return nil
}

// memoryFolder returns a new folder in memory.
func memoryFolder(b *testing.B) string {
	dir, err := os.MkdirTemp("/dev/shm", "ration-bench-")
	if err != nil {
		b.Skip(err)
	}
	b.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// ownJobs makes a folder in memory the folder of this user's jobs.
func ownJobs(b *testing.B) {
	b.Setenv(job.EnvFolder, filepath.Join(memoryFolder(b), "jobs"))
	b.Setenv(job.EnvRegion, "")
}

// BenchmarkReadThousandJobs reads a folder of 1000 jobs, as ration ps does, each with a
// living process of another than this program's that holds memory.
func BenchmarkReadThousandJobs(b *testing.B) {
	const jobs, perProcess = 1000, 20
	ownJobs(b)
	for first := 0; first < jobs; first += perProcess {
		var paths []string
		for i := range perProcess {
			path, err := job.MakeFolder(fmt.Sprint("job-", first+i))
			expect.OK(b, err)
			paths = append(paths, path)
		}
		startHolders(b, paths...)
	}
	for b.Loop() {
		m, err := Read()
		expect.Must(b, err == nil && len(m.Jobs) == jobs, len(m.Jobs), "jobs", err)
		for _, j := range m.Jobs {
			expect.Must(b, j.Err() == nil && len(j.Processes) == 1 && j.Processes[0].Verified && j.Devices[0].Used == 1<<20 && !j.Devices[0].Inexact, j.Name)
		}
	}
}

// startHolders starts a process that holds memory in each of the regions, which it makes.
func startHolders(b testing.TB, paths ...string) *exec.Cmd {
	b.Helper()
	holder := exec.Command(os.Args[0])
	holder.Env = append(os.Environ(), envHold+"="+strings.Join(paths, ":"))
	stdin, err := holder.StdinPipe()
	expect.OK(b, err)
	stdout, err := holder.StdoutPipe()
	expect.OK(b, err)
	if err := holder.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _, _ = stdin.Close(), holder.Wait() })
	line, _ := bufio.NewReader(stdout).ReadString('\n')
	expect.Must(b, line == "ready\n", "a holder said", line)
	return holder
}

// BenchmarkReadThousandJobsOfUsers is the same for the jobs of 50 other users, as root's
// ration ps reads them.
func BenchmarkReadThousandJobsOfUsers(b *testing.B) {
	const users, perUser = 50, 20
	dir := memoryFolder(b)
	places := job.Paths{Runtime: filepath.Join(dir, "run"), Temp: filepath.Join(dir, "tmp"), Proc: "/proc", Home: func(int) string { return "" }}
	for uid := range users {
		var paths []string
		for i := range perUser {
			folder := filepath.Join(places.Runtime, fmt.Sprint(61000+uid), "ration", fmt.Sprint("job-", i))
			if err := os.MkdirAll(folder, 0o700); err != nil {
				b.Fatal(err)
			}
			paths = append(paths, filepath.Join(folder, job.RegionName))
		}
		startHolders(b, paths...)
	}
	for b.Loop() {
		m := readUsers(b, places, time.Minute)
		found := 0
		for i := range m.Jobs {
			if j := &m.Jobs[i]; strings.HasPrefix(j.Path, dir) && j.Err() == nil && j.Processes[0].Verified && j.Devices[0].Used == 1<<20 {
				found++
			}
		}
		expect.Must(b, found == users*perUser, found, "jobs")
	}
}

// BenchmarkScannerIdle is a scan of 200 jobs with 8 processes each in which nothing
// happens, beside 10,000 that have ended.
func BenchmarkScannerIdle(b *testing.B) {
	const jobs, perJob, ended = 200, 8, 10000
	ownJobs(b)
	var paths []string
	for i := range jobs {
		path, err := job.MakeFolder(fmt.Sprint("job-", i))
		expect.OK(b, err)
		paths = append(paths, path)
	}
	for range perJob {
		startHolders(b, paths...)
	}
	header, err := os.ReadFile(paths[0])
	expect.OK(b, err)
	for i := range ended {
		path, err := job.MakeFolder(fmt.Sprint("old-", i))
		expect.OK(b, err)
		// Without the rest of the file, which takes no room in a region either.
		err = os.WriteFile(path, header[:4096], 0o600)
		if err := errors.Join(err, os.Truncate(path, int64(len(header))), os.WriteFile(filepath.Join(filepath.Dir(path), "alive"), nil, 0o600)); err != nil {
			b.Fatal(err)
		}
	}
	r := newScanner(job.ScanOptions{})
	defer r.Close()
	for tries := 1; ; tries++ { // the first reads are longer than one waits for, on a busy machine
		m, changed, err := r.scan(true)
		expect.OK(b, err)
		if !changed && len(m.Jobs) == jobs+keptEnded && m.Hidden == ended-keptEnded {
			break
		}
		expect.Must(b, tries != 100, len(m.Jobs), "jobs", m.Hidden, "hidden")
		if u := r.users[ownUser]; !u.isScanning() {
			u.state.rested = time.Time{}
		}
	}
	began := processTime()
	for b.Loop() {
		if _, _, err := r.scan(true); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(processTime()-began)/float64(b.N), "cpu-ns/op") // which waits for nobody
}

// processTime is the processors' time that this process has used.
func processTime() time.Duration {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
