package privsep

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ration/check/expect"
	"ration/internal/job"
	"ration/internal/proc"
)

// Users of these tests.
const (
	tenant = 64001
	victim = 64002
)

// hold is a process of a test: it locks a byte of its own of a file, if there is one, and waits. With another user's
// UID it keeps its real UID and takes that one as its effective UID.
func hold(path, effective string) int {
	if path != "" {
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err == nil {
			err = unix.FcntlFlock(f.Fd(), unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK, Start: int64(os.Getpid()), Len: 1})
		}
		if err != nil {
			fmt.Println(err)
			return 1
		}
	}
	if effective != "" {
		var uid int
		_, _ = fmt.Sscan(effective, &uid)
		if err := syscall.Setresuid(tenant, uid, uid); err != nil {
			fmt.Println(err)
			return 1
		}
	}
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}

type held struct {
	Target
	cmd *exec.Cmd
}

// holding starts a process of a user. extra are files that it inherits.
func holding(t *testing.T, uid uint32, path, effective string, extra ...*os.File) *held {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = []string{"probe", "hold", path, effective}
	cmd.ExtraFiles = extra
	if effective == "" { // otherwise it needs root's rights to become two users
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	}
	in, err := cmd.StdinPipe()
	expect.OK(t, err)
	out, err := cmd.StdoutPipe()
	expect.OK(t, err)
	expect.OK(t, cmd.Start())
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	expect.Must(t, line == "ready\n", line, err)
	started, err := proc.Started(cmd.Process.Pid)
	expect.OK(t, err)
	return &held{Target{cmd.Process.Pid, started}, cmd}
}

// ended returns the signal that has ended the process.
func (h *held) ended(t *testing.T) syscall.Signal {
	t.Helper()
	_ = h.cmd.Wait()
	return h.cmd.ProcessState.Sys().(syscall.WaitStatus).Signal()
}

func (h *held) lives() bool {
	handle, err := proc.Open(h.PID)
	if err != nil {
		return false
	}
	defer handle.Close()
	return handle.Alive()
}

// operatorJobs makes a folder of root's jobs, and a region in it for each name.
func operatorJobs(t *testing.T, names ...string) (region func(name string) string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs processes of several users")
	}
	was := rootFolder
	t.Cleanup(func() { rootFolder = was })
	rootFolder = t.TempDir()
	for dir := rootFolder; dir != "/tmp" && dir != "/"; dir = filepath.Dir(dir) {
		expect.OK(t, os.Chmod(dir, 0o755))
	}
	region = func(name string) string { return filepath.Join(rootFolder, name, job.RegionName) }
	for _, name := range names {
		expect.OK(t, os.Mkdir(filepath.Join(rootFolder, name), 0o755))
		expect.OK(t, os.WriteFile(region(name), make([]byte, 64), 0o666))
		expect.OK(t, os.Chmod(region(name), 0o666))
	}
	return region
}

// A request, which a taken-over reader may have sent, ends only processes of the job, and of its user. No process
// of another user is ended, whatever it has inherited or been handed, nor another one with the same PID.
func TestHostileStop(t *testing.T) {
	region := operatorJobs(t, "train", job.OfUser(tenant), job.RunOfUser(tenant, "a"))
	file, err := os.OpenFile(region("train"), os.O_RDWR, 0)
	expect.OK(t, err)
	defer file.Close()
	ofd := unix.Flock_t{Type: unix.F_WRLCK, Start: 8, Len: 1}
	expect.OK(t, unix.FcntlFlock(file.Fd(), unix.F_OFD_SETLK, &ofd))
	member := holding(t, tenant, region("train"), "")
	beside := holding(t, tenant, "", "")
	others := holding(t, victim, "", "")
	handed := holding(t, victim, "", "", file) // it has the job's file open, with a lock that another process took
	roots := holding(t, 0, region("train"), "")
	both := holding(t, tenant, region("train"), fmt.Sprint(victim))
	inPolicy := holding(t, victim, region(job.OfUser(tenant)), "")
	inRun := holding(t, victim, region(job.RunOfUser(tenant, "a")), "")
	expect.OK(t, os.Symlink(region("train"), filepath.Join(rootFolder, "region")))
	linked := filepath.Join(rootFolder, "linked")
	expect.OK(t, os.Mkdir(linked, 0o755))
	expect.OK(t, os.Symlink(region("train"), filepath.Join(linked, "region")))
	later := member.Target
	later.Started++
	many := make([]Target, MaxStop+1)
	for name, c := range map[string]struct {
		path string
		uid  int
		of   []Target
	}{
		"a process of the user that is not in the job":    {region("train"), tenant, []Target{beside.Target}},
		"a process of another user":                       {region("train"), victim, []Target{others.Target}},
		"a process of another user, as if the tenant's":   {region("train"), tenant, []Target{others.Target}},
		"a process that was handed the region":            {region("train"), victim, []Target{handed.Target}},
		"root's process in the job":                       {region("train"), 0, []Target{roots.Target}},
		"root's process in the job, as if the tenant's":   {region("train"), tenant, []Target{roots.Target}},
		"a process with the rights of two users":          {region("train"), tenant, []Target{both.Target}},
		"a process with the rights of two users, other":   {region("train"), victim, []Target{both.Target}},
		"a process that had the PID before":               {region("train"), tenant, []Target{later}},
		"another user's process in a policy's job":        {region(job.OfUser(tenant)), victim, []Target{inPolicy.Target}},
		"another user's process, as if the policy's user": {region(job.OfUser(tenant)), tenant, []Target{inPolicy.Target, others.Target}},
		"another user's process in a run":                 {region(job.RunOfUser(tenant, "a")), victim, []Target{inRun.Target}},
		"the process 1":                                   {region(job.OfUser(tenant)), tenant, []Target{{PID: 1}}},
		"a group of processes":                            {region(job.OfUser(tenant)), tenant, []Target{{PID: -member.PID, Started: member.Started}, {PID: 0}, {PID: -1}}},
		"a job that is not there":                         {region("gone"), tenant, []Target{member.Target}},
		"a link":                                          {region("linked"), tenant, []Target{member.Target}},
		"a region of a user's own":                        {"/run/user/64001/ration/train/region", tenant, []Target{member.Target}},
		"a path that leads elsewhere":                     {rootFolder + "/x/../train/region", tenant, []Target{member.Target}},
		"no region":                                       {filepath.Join(rootFolder, "region"), tenant, []Target{member.Target}},
		"no user":                                         {region("train"), -1, []Target{member.Target}},
		"no user either":                                  {region("train"), noUser, []Target{member.Target}},
		"no processes":                                    {region("train"), tenant, nil},
		"too many processes":                              {region("train"), tenant, many},
	} {
		s := Stop{Region: c.path, UID: c.uid, Processes: c.of, Kill: true}
		if pids, err := s.Do(); len(pids) > 0 || err == nil {
			t.Errorf("%s: signalled %v, %v", name, pids, err)
		}
	}
	for _, h := range []*held{member, beside, others, handed, roots, both, inPolicy, inRun} {
		expect.True(t, h.lives(), h.cmd.Args, "was ended")
	}
	// It ends those that it may, beside others, and goes on.
	s := Stop{Region: region("train"), UID: tenant, Processes: []Target{others.Target, {PID: 1 << 21}, member.Target}}
	pids, err := s.Do()
	expect.True(t, len(pids) == 1 && pids[0] == member.PID && err != nil && strings.Contains(err.Error(), fmt.Sprint("process ", others.PID)), pids, err)
	expect.Equal(t, member.ended(t), syscall.SIGTERM)
	s = Stop{Region: region(job.OfUser(tenant)), UID: tenant, Processes: []Target{beside.Target}, Kill: true} // it is outside of its policy's job
	pids, err = s.Do()
	expect.True(t, len(pids) == 1 && err == nil, pids, err)
	expect.Equal(t, beside.ended(t), syscall.SIGKILL)
	pids, err = s.Do()
	expect.True(t, len(pids) == 0 && err == nil, "ended already", pids, err)
	expect.True(t, others.lives() && handed.lives() && inPolicy.lives(), "a process of another user was ended")
}

// A process that has become another user's after it was checked gets no signal: the kernel refuses it to the
// thread that sends it, which has only the rights of the user. The rest of this process keeps its own.
func TestHostileStopAfterCheck(t *testing.T) {
	operatorJobs(t)
	for _, uid := range []uint32{0, victim, testReader} {
		h := holding(t, uid, "", "")
		handle, err := proc.Open(h.PID)
		expect.OK(t, err)
		for range 20 { // sooner or later one is on the main thread
			pids, err := signalAs(tenant, []*proc.Handle{handle}, syscall.SIGKILL)
			expect.True(t, len(pids) == 0 && err != nil && h.lives(), uid, pids, err)
		}
		expect.OK(t, handle.Close())
	}
	deadline := time.Now().Add(10 * time.Second)
	for {
		tasks, err := filepath.Glob("/proc/self/task/*/status")
		expect.OK(t, err)
		changed := 0
		for _, task := range tasks {
			if text, err := os.ReadFile(task); err == nil && !strings.Contains(string(text), "\nUid:\t0\t0\t0\t0\n") {
				changed++
			}
		}
		if changed == 0 {
			return
		}
		expect.Must(t, time.Now().Before(deadline), changed, "threads are still another user's")
		time.Sleep(time.Millisecond)
	}
}

// The parent ends nothing unless the operator has chosen so, whatever the reader asks for.
func TestStopIsTheOperatorsChoice(t *testing.T) {
	region := operatorJobs(t, "train")
	member := holding(t, tenant, region("train"), "")
	m := message{UID: tenant, Paths: []string{region("train")}, Stop: []Target{member.Target}}
	pids, err := m.stop(Options{})
	expect.True(t, len(pids) == 0 && err != nil && member.lives(), pids, err)
	for _, uid := range []int64{-1, 1 << 32, tenant | 1<<32} {
		m.UID = uid
		pids, err := m.stop(Options{Stop: true})
		expect.True(t, len(pids) == 0 && err != nil && member.lives(), pids, err)
	}
	m.UID = tenant
	pids, err = m.stop(Options{Stop: true})
	expect.True(t, len(pids) == 1 && err == nil, pids, err)
	expect.Equal(t, member.ended(t), syscall.SIGTERM)
}
