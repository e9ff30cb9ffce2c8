package cli

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ration/check/expect"
	"ration/check/observer"
	"ration/check/testenv"
	"ration/internal/job"
	"ration/internal/proc"
	"ration/internal/region"
)

// A job of root's names a process of another job as its own. Root's sleep and wake leave that process alone: the driver
// moves the memory of any process for root.
func TestSleepNamesAnother(t *testing.T) {
	testenv.NeedsRoot(t, "needs root")
	jobs := sleepMachine(t, "0")
	victim := startSleeper(t, 100, "--mem", "2g", "--name", "victim")
	_, before := readSleeper(t, "victim")
	own := startSleeper(t, 100, "--mem", "2g", "--name", "hostile")
	r, err := region.OpenReadOnly(filepath.Join(jobs, "victim", job.RegionName))
	expect.OK(t, err)
	all, err := r.Processes()
	expect.OK(t, err)
	r.Close()
	expect.Must(t, len(all) == 1, "processes of the victim", all)
	f, err := os.OpenFile(filepath.Join(jobs, "hostile", job.RegionName), os.O_RDWR, 0)
	expect.OK(t, err)
	defer f.Close()
	expect.OK(t, tenantFile{f}.word(uint64(all[0].Seen), "Slots", 0, "PID"))

	out, err := rationOutput(nil, "sleep", "--wake", "manual", "hostile")
	expect.True(t, err == nil, "its own process can still sleep:", err, out)
	awakeAndWhole(t, "victim", before.Used, victim)
	out, err = rationOutput(nil, "wake", "hostile")
	expect.True(t, err == nil, err, out)
	own.works()
	awakeAndWhole(t, "victim", before.Used, victim)
}

// A job of root's that sleeps says that it has more aside than its limit, or than the GPU has. It does not wait for that
// room in root's queue, in which others would then wait behind it.
func TestSleeperKeepsNoPlace(t *testing.T) {
	jobs := sleepMachine(t, "0")
	for name, args := range map[string][]string{"limited": {"--mem", "2g"}, "unlimited": nil} {
		p := startSleeper(t, 100, append(args, "--name", name)...)
		mustRation(t, "sleep", "--wake", "manual", name)
		f, err := os.OpenFile(filepath.Join(jobs, name, job.RegionName), os.O_RDWR, 0)
		expect.OK(t, err)
		var real [2]byte // of the total, at the byte for 2^32
		for i, part := range []string{"A", "B"} {
			at := observer.Offset("Accounts", 0, 0, part, "Total") + 4
			_, err = f.ReadAt(real[i:i+1], at)
			expect.OK(t, err)
			_, err = f.WriteAt([]byte{64}, at) // 256 GiB
			expect.OK(t, err)
		}
		began := time.Now()
		out, err := rationOutput(nil, "wake", "--wait=30s", name)
		expect.True(t, err != nil && time.Since(began) < 20*time.Second && (strings.Contains(out, "raise it: ration limit") || strings.Contains(out, "on GPU 0, which has")), name, "waits:", err, out)
		for i, part := range []string{"A", "B"} {
			_, err = f.WriteAt(real[i:i+1], observer.Offset("Accounts", 0, 0, part, "Total")+4)
			expect.OK(t, err)
		}
		expect.OK(t, f.Close())
		mustRation(t, "wake", name)
		p.works()
	}
}

const nobody = 65534

// startTenant starts a program of a job of the user nobody, and returns the job's region. This test is root's.
func startTenant(t *testing.T, mib int) (p *sleepingProgram, path string) {
	folder, state := t.TempDir(), filepath.Dir(os.Getenv("FAKEGPU_STATE"))
	expect.OK(t, os.Chmod(filepath.Dir(folder), 0o755))
	expect.OK(t, os.Chmod(state, 0o777))
	t.Setenv("RATION_LIB", t.TempDir()) // of root's own, for the program
	self, err := os.ReadFile("/proc/self/exe")
	expect.OK(t, err)
	bin := t.TempDir() // that nobody can enter
	expect.OK(t, os.WriteFile(filepath.Join(bin, "ration"), self, 0o755))
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	expect.OK(t, os.Chown(folder, nobody, nobody))
	p = startSleeperAs(t, nobody, mib, []string{job.EnvFolder + "=" + folder, "RATION_LIB=" + folder + "/lib"}, "--mem", "2g", "--name", "mine")
	return p, filepath.Join(folder, "mine", job.RegionName)
}

// A tenant's job is put to sleep for root by a process of the tenant. That process gives the tenant nothing of root's,
// and does not keep root's command waiting.
func TestSleepAsOwner(t *testing.T) {
	testenv.NeedsRoot(t, "needs root")
	sleepMachine(t, "0")
	p, path := startTenant(t, 100)

	// The tenant keeps the job's lock, so the process waits.
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	expect.OK(t, err)
	defer f.Close()
	expect.OK(t, unix.Flock(int(f.Fd()), unix.LOCK_EX))
	secret, err := os.Create(filepath.Join(t.TempDir(), "secret"))
	expect.OK(t, err)
	defer secret.Close()
	cmd := exec.Command("ration", "sleep", path)
	cmd.Env = append(os.Environ(), "SECRET=of-root")
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = secret, secret, []*os.File{secret}
	began := time.Now()
	expect.OK(t, cmd.Start())
	pid := childOf(t, cmd.Process.Pid, nobody)
	environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	expect.OK(t, err)
	expect.True(t, !strings.Contains(string(environ), "SECRET"), "the tenant reads root's environment")
	session, err := unix.Getsid(pid)
	expect.True(t, err == nil && session == pid, "the tenant's process is in root's session, and can type into its terminal")
	links, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	expect.OK(t, err)
	for _, link := range links {
		to, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", pid, link.Name()))
		expect.True(t, to != secret.Name(), "the tenant's process has root's file as descriptor", link.Name())
	}
	expect.OK(t, unix.Kill(pid, unix.SIGSTOP))
	err = cmd.Wait()
	text, _ := os.ReadFile(secret.Name())
	expect.True(t, err != nil && strings.Contains(string(text), "stopped"), "the process that was stopped:", err, string(text))
	expect.True(t, time.Since(began) < 30*time.Second, "root's command waited for", time.Since(began))

	expect.OK(t, unix.Flock(int(f.Fd()), unix.LOCK_UN))
	out := mustRation(t, "sleep", "--wake", "manual", path)
	expect.True(t, strings.Contains(out, "of 1 process put aside"), out)
	expect.True(t, strings.Contains(mustRation(t, "wake", path), "is awake"), "wake")
	p.works()
}

// startSleeperAs is startSleeper as another user, with more variables.
func startSleeperAs(t *testing.T, uid uint32, mib int, environ []string, args ...string) *sleepingProgram {
	p := newSleeper(t, args...)
	p.command.Env = append(os.Environ(), environ...)
	p.command.Dir = "/"
	p.command.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	p.start(mib)
	return p
}

// childOf waits for a child of a process that runs as a user.
func childOf(t *testing.T, parent, uid int) int {
	t.Helper()
	before, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", parent))
	expect.OK(t, err)
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		list, _ := filepath.Glob("/proc/[0-9]*")
		for _, dir := range list {
			pid, _ := strconv.Atoi(filepath.Base(dir))
			if stat, err := proc.ReadStat(pid); err != nil || stat.Parent != parent {
				continue
			}
			// Before it executes its program it has its parent's memory and files.
			if name, _ := os.ReadFile(dir + "/cmdline"); len(name) == 0 || string(name) == string(before) {
				continue
			}
			if owner, _, _, err := proc.Owner(pid); err == nil && owner == uid {
				return pid
			}
		}
	}
	t.Fatal("no process of user ", uid, " was started")
	return 0
}
