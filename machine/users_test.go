package machine

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"ration/check/expect"
	"ration/check/testenv"
	"ration/internal/job"
	"ration/internal/proc"
	"ration/internal/region"
)

// shared is a folder that all users may enter, with this program in it.
func shared(t *testing.T) (dir, program string) {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "ration-users-")
	expect.OK(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	content, err := os.ReadFile(os.Args[0])
	program = filepath.Join(dir, "holder")
	expect.OK(t, errors.Join(err, os.Chmod(dir, 0o755), os.WriteFile(program, content, 0o755)))
	return dir, program
}

// holdAs starts a process of a user that holds memory in a region, which it makes.
func holdAs(t *testing.T, program string, uid int, path string) *exec.Cmd {
	t.Helper()
	return startHolder(t, exec.Command(program), uid, path)
}

func startHolder(t *testing.T, holder *exec.Cmd, uid int, path string) *exec.Cmd {
	t.Helper()
	holder.Env = append(os.Environ(), envHold+"="+path)
	holder.Dir = "/"
	holder.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid), NoSetGroups: os.Geteuid() != 0}}
	stdin, err := holder.StdinPipe()
	stdout, err2 := holder.StdoutPipe()
	expect.OK(t, errors.Join(err, err2))
	expect.OK(t, holder.Start())
	t.Cleanup(func() { _, _ = stdin.Close(), holder.Wait() })
	line, _ := bufio.NewReader(stdout).ReadString('\n')
	expect.Must(t, line == "ready\n", "a holder said", line)
	return holder
}

func makeDir(t *testing.T, uid int, path string) string {
	t.Helper()
	expect.OK(t, errors.Join(os.MkdirAll(path, 0o700), os.Chown(path, uid, uid)))
	return path
}

// readUsers reads the jobs of all users once, as Read does for root.
func readUsers(t testing.TB, places job.Paths, timeout time.Duration) Machine {
	t.Helper()
	s := newScanner(job.ScanOptions{Once: true})
	defer s.Close()
	s.userPaths, s.allUsers, s.timeout = places, func() bool { return true }, timeout
	m, _, err := s.scan(true)
	expect.OK(t, err)
	return m
}

// Root's picture has the jobs of all users, wherever they are, each once; no link of a tenant is
// followed, and what is no region is no job.
func TestAllUsers(t *testing.T) {
	testenv.NeedsRoot(t, "only root sees the jobs of all users")
	const alice, bob, carol = 61001, 61002, 61003
	dir, program := shared(t)
	places := job.Paths{Runtime: filepath.Join(dir, "run"), Temp: filepath.Join(dir, "tmp"), Proc: "/proc",
		Home: func(uid int) string { return filepath.Join(dir, "home", fmt.Sprint(uid)) }}
	for _, parent := range []string{places.Runtime, places.Temp, filepath.Join(dir, "home")} {
		expect.OK(t, os.MkdirAll(parent, 0o755))
	}
	makeDir(t, alice, filepath.Join(places.Runtime, fmt.Sprint(alice)))
	makeDir(t, alice, filepath.Join(places.Runtime, fmt.Sprint(alice), "ration"))
	train := filepath.Join(makeDir(t, alice, filepath.Join(places.Runtime, fmt.Sprint(alice), "ration", "train")), "region")
	bobs := makeDir(t, bob, filepath.Join(places.Temp, fmt.Sprint("ration-", bob)))
	ended := filepath.Join(makeDir(t, bob, filepath.Join(bobs, "ended")), "region")
	for _, path := range []string{"", ".local", ".local/state", ".local/state/ration", ".local/state/ration/fine"} {
		makeDir(t, carol, filepath.Join(dir, "home", fmt.Sprint(carol), path))
	}
	fine := filepath.Join(dir, "home", fmt.Sprint(carol), ".local/state/ration/fine/region")
	odd := filepath.Join(makeDir(t, bob, filepath.Join(dir, "odd")), "place")
	own := filepath.Join(dir, "own")
	expect.OK(t, os.WriteFile(own, nil, 0o600))
	holder := holdAs(t, program, alice, train)
	holdAs(t, program, carol, fine)
	holdAs(t, program, bob, odd)
	// One is where only its own mount namespace has it, as in a container.
	private := filepath.Join(makeDir(t, 0, filepath.Join(dir, "private")), "region")
	inside := startHolder(t, exec.Command("unshare", "-m", "sh", "-c", "mount -t tmpfs none $1 && exec $2", "sh", filepath.Dir(private), program), 0, private)
	private = fmt.Sprintf("/proc/%d/root%s", inside.Process.Pid, private)
	gone := holdAs(t, program, bob, ended)
	expect.OK(t, gone.Process.Kill())
	_ = gone.Wait()
	// A second path to a file is no second job.
	expect.OK(t, os.Link(train, filepath.Join(makeDir(t, bob, filepath.Join(bobs, "twin")), "region")))
	// What bob plants: links to another user's job and folder, a pipe, no region, a name that
	// moves the cursor.
	secret := makeRegionAt(t, filepath.Join(makeDir(t, 0, filepath.Join(dir, "secret", "job")), "region"))
	for link, to := range map[string]string{
		filepath.Join(bobs, "link"): filepath.Dir(secret), filepath.Join(places.Temp, "ration-61009"): filepath.Join(dir, "secret"),
		filepath.Join(makeDir(t, bob, filepath.Join(bobs, "leads")), "region"): secret,
	} {
		expect.OK(t, errors.Join(os.Symlink(to, link), os.Lchown(link, bob, bob)))
	}
	expect.OK(t, mkfifo(filepath.Join(makeDir(t, bob, filepath.Join(bobs, "pipe")), "region")))
	makeDir(t, bob, filepath.Join(bobs, "\x1b[2J"))

	m := readUsers(t, places, time.Minute)
	byPath := map[string]*Job{}
	for i := range m.Jobs {
		j := &m.Jobs[i]
		if !strings.Contains(j.Path, dir) {
			continue // of another program on this machine
		}
		expect.True(t, byPath[j.Path] == nil, j.Path, "is there twice")
		byPath[j.Path] = j
	}
	for path, want := range map[string]Job{
		train: {Name: "train", UID: alice, State: Running}, fine: {Name: "fine", UID: carol, State: Running},
		odd: {UID: bob, State: Running}, private: {UID: 0, State: Running}, ended: {Name: "ended", UID: bob, State: Ended},
	} {
		j := byPath[path]
		expect.True(t, j != nil && j.Err() == nil && j.Name == want.Name && j.UID == want.UID && j.Owner == proc.UserName(want.UID) && j.State == want.State && j.Devices[0].Used == 1<<20, path, j)
		delete(byPath, path)
	}
	for _, name := range []string{"leads", "pipe"} {
		path := filepath.Join(bobs, name, "region")
		if j := byPath[path]; j == nil || j.Err() == nil || len(j.Processes) != 0 {
			t.Errorf("%s: got %+v", path, j)
		}
		delete(byPath, path)
	}
	expect.True(t, len(byPath) == 0, "there are also", byPath)
	// The path by which one is shown leads to it, and to nothing else.
	if j, err := ReadJob(private); err != nil || j.file != m.Jobs[slices.IndexFunc(m.Jobs, func(j Job) bool { return j.Path == private })].file {
		t.Errorf("got %+v, %v", j, err)
	}
	i := slices.IndexFunc(m.Jobs, func(j Job) bool { return j.Path == train })
	p := m.Jobs[i].Processes
	expect.True(t, len(p) == 1 && p[0].Verified && p[0].PID == holder.Process.Pid && p[0].UID == alice && p[0].Cgroup != "", p)
}

// Jobs are listed by user, and those of a user by name, in whatever order the file system has them.
func TestAllUsersInOrder(t *testing.T) {
	testenv.NeedsRoot(t, "only root sees the jobs of all users")
	dir, _ := shared(t)
	places := job.Paths{Runtime: filepath.Join(dir, "run"), Temp: filepath.Join(dir, "tmp"), Proc: filepath.Join(dir, "proc"), Home: func(int) string { return "" }}
	var want []string
	for _, uid := range []int{61001, 61002} {
		for _, path := range []string{places.Runtime, filepath.Join(places.Runtime, fmt.Sprint(uid))} {
			expect.OK(t, os.MkdirAll(path, 0o755))
		}
		jobs := makeDir(t, uid, filepath.Join(places.Runtime, fmt.Sprint(uid), "ration"))
		for _, name := range []string{"c", "a", "e", "b", "d"} {
			path := makeRegionAt(t, filepath.Join(makeDir(t, uid, filepath.Join(jobs, name)), "region"))
			expect.OK(t, os.Chown(path, uid, uid))
			want = append(want, path)
		}
	}
	slices.Sort(want)
	m := readUsers(t, places, time.Minute)
	var got []string
	for i := range m.Jobs {
		if strings.Contains(m.Jobs[i].Path, dir) { // the others are of other programs on this machine
			got = append(got, m.Jobs[i].Path)
		}
	}
	expect.True(t, slices.Equal(got, want), got)
}

func mkfifo(path string) error { return syscall.Mkfifo(path, 0o600) }

func makeRegionAt(t *testing.T, path string) string {
	t.Helper()
	r, err := region.Open(path, region.Options{})
	expect.OK(t, err)
	expect.OK(t, r.Close())
	return path
}

// A user whose folder never answers costs the deadline, and hides nobody else.
func TestUserWhoNeverAnswers(t *testing.T) {
	dir, _ := shared(t)
	uid := os.Geteuid() + 1 // of whom nothing but this is known
	block := make(chan struct{})
	defer close(block)
	places := job.Paths{Runtime: filepath.Join(dir, "run"), Temp: filepath.Join(dir, "tmp"), Proc: filepath.Join(dir, "proc"), Home: func(int) string { <-block; return "" }}
	if err := errors.Join(os.MkdirAll(filepath.Join(places.Runtime, fmt.Sprint(os.Geteuid()), "ration", "train"), 0o700),
		os.MkdirAll(filepath.Join(places.Proc, "7"), 0o755)); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		expect.OK(t, os.Chown(filepath.Join(places.Proc, "7"), uid, uid))
	} else {
		t.Skip("only root can make a process of another user")
	}
	path := makeRegionAt(t, filepath.Join(places.Runtime, fmt.Sprint(os.Geteuid()), "ration", "train", "region"))
	odd := filepath.Join(dir, "place")
	holdAs(t, os.Args[0], os.Geteuid(), odd)
	m := readUsers(t, places, 3*time.Second) // long enough for those that answer, on any machine
	for _, want := range []string{path, odd} {
		expect.True(t, slices.ContainsFunc(m.Jobs, func(j Job) bool { return j.Path == want }), want, "is missing", m.Jobs)
	}
	if !slices.ContainsFunc(m.Findings, func(f Finding) bool {
		return f.Kind == Unanswering && strings.Contains(f.Text, fmt.Sprint("user ", uid, " could not be read within 3 s"))
	}) {
		t.Errorf("got %+v", m.Findings)
	}
}

// A process that the kernel confirms is shown with a PID that the kernel gives, never with the one that
// its region says: an operator may end it by that.
func TestVerifiedPIDIsTheKernels(t *testing.T) {
	path := filepath.Join(t.TempDir(), "region")
	startHolders(t, path)
	r, err := region.OpenReadOnly(path)
	expect.OK(t, err)
	defer r.Close()
	all, err := r.Processes()
	expect.Must(t, err == nil && len(all) != 0 && all[0].Seen != 0, "got", all, err)
	for own, want := range map[int]int{0: all[0].Seen, 12: 12} {
		p := claimed(all[0])
		p.PID = 4711 // it says so
		p.identify(r, all[0], owners{all[0].Seen: owner{uid: 61000, pid: own, name: "holder"}})
		expect.True(t, p.Verified && p.PID == want && p.UID == 61000, "want pid", want, "got", p)
	}
}
