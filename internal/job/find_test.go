package job

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"ration/check/expect"
	"ration/check/testenv"
	"ration/internal/abi"
	"ration/internal/limit"
	"ration/internal/region"
	"ration/internal/safepath"
)

// used makes a job that this process has joined, and returns its slot.
func used(t *testing.T, name string) (Job, *region.Slot) {
	t.Helper()
	path, err := MakeFolder(name)
	expect.OK(t, err)
	var opt region.Options
	opt.Limits.Memory[0] = abi.MakeLimit(1 << 30)
	r, err := region.Open(path, opt)
	expect.OK(t, err)
	t.Cleanup(func() { _ = r.Close() })
	slot, err := r.Claim("me")
	expect.OK(t, err)
	return Job{name, path}, slot
}

func TestFind(t *testing.T) {
	t.Setenv(EnvFolder, filepath.Join(t.TempDir(), "jobs"))
	t.Setenv(EnvRegion, "")
	if _, err := Find("train"); !errors.Is(err, ErrNoJob) || !strings.Contains(err.Error(), "there is none in") {
		t.Errorf("got %v without any job", err)
	}
	j, slot := used(t, "train")
	defer slot.Leave()
	for what, want := range map[string]Job{"train": j, j.Path: j} {
		got, err := Find(what)
		expect.True(t, err == nil && got == want, what, got, err, want)
	}
	_, err := Find("trains")
	expect.True(t, errors.Is(err, ErrNoJob) && strings.Contains(err.Error(), "(there are: train)"), err, "want the jobs there are")
	enqueued(t, "train")
	enqueued(t, "next")
	_, err = Find("other")
	expect.True(t, err != nil && strings.Contains(err.Error(), "(there are: train, next)"), err, "want the job that will be made as well, and no name twice")
	err = &NoJobError{Name: "other", Others: strings.Split("a b c d e f g", " ")}
	expect.Equal(t, err.Error(), "other: no such job (there are: a, b, c, d, e and 2 more; ration ps -a shows them)")
	_, err = Find("a b")
	expect.True(t, errors.Is(err, limit.ErrName), err, "want ErrName")
	_, err = MakeFolder("empty")
	expect.OK(t, err)
	_, err = Find("empty")
	expect.True(t, errors.Is(err, ErrNoJob), err, "of a folder without a region")
	got, err := FindFolder("empty")
	expect.True(t, err == nil && got.Name == "empty", got, err)
}

// A user whose program waits for the ration of a policy is named as in all views.
func TestNamesOfWaiting(t *testing.T) {
	waiting := []Waiting{{Job: OfUser(0)}, {Job: "next"}, {Job: OfUser(0)}}
	names, live := namesOf([]Job{{"ended", "/tmp/jobs/ended/region"}}, RootFolder, waiting)
	expect.True(t, fmt.Sprint(names) == "[root next ended]" && live == 2, names, live)
	names, _ = namesOf(nil, "/tmp/jobs", waiting[1:2])
	expect.Equal(t, fmt.Sprint(names), "[next]")
}

// A job of which nothing is locked has no living processes, also where the kernel could not be
// asked for each of them in time: one user's thousand of them must not keep a job from being
// removed on a busy machine.
func TestUnlockedHasNoLiving(t *testing.T) {
	t.Setenv(EnvFolder, filepath.Join(t.TempDir(), "jobs"))
	noTime := func() bool { return false }
	j, slot := used(t, "train")
	defer slot.Leave()
	content, err := os.ReadFile(j.Path)
	expect.OK(t, err)
	path, err := MakeFolder("dead") // the same processes, and none of their locks
	expect.OK(t, err)
	expect.OK(t, os.WriteFile(path, content, 0o600))
	for name, c := range map[string]struct {
		job    Job
		living int
	}{"locked": {j, 1}, "not locked": {Job{"dead", path}, 0}} {
		u, err := inspectWith(c.job, noTime)
		expect.True(t, err == nil && len(u.living) == c.living && u.locked == (c.living > 0), name, u, err)
	}
}

func TestRemove(t *testing.T) {
	t.Setenv(EnvFolder, filepath.Join(t.TempDir(), "jobs"))
	j, slot := used(t, "train")
	for _, force := range []bool{false, true} {
		var living *LivingError
		err := Remove(j, force)
		expect.True(t, errors.As(err, &living) && len(living.Living) == 1 && errors.Is(err, ErrLiving),
			"force", force, err, "want the living process")
	}
	expect.OK(t, slot.Leave())
	h, err := Join("train") // as what was launched in it does
	expect.OK(t, err)
	err = Remove(j, true)
	expect.True(t, errors.Is(err, ErrInUse), err, "while something runs in it")
	expect.True(t, !Ended(j, time.Now()), "ended while something runs in it")
	h.Release()
	expect.True(t, Ended(j, time.Now()), "not ended when all have left")
	expect.Equal(t, Remove(j, false), nil)
	entries, err := os.ReadDir(Folder())
	expect.True(t, err == nil && len(entries) == 0, "left behind", entries, err)
}

// A command of ration run may end before there is a region.
func TestRemoveWithoutRegion(t *testing.T) {
	l := locked(t)
	l.Release()
	err := Remove(l.Job, false)
	expect.True(t, err == nil && !safepath.Exists(l.Folder), "not removed", err)
}

// A folder in /tmp is looked at where it belongs to the user whom it is named for: anybody can
// make any number of others.
func TestFoldersOfOthers(t *testing.T) {
	temp := t.TempDir()
	own := os.Geteuid()
	for uid := own; uid < own+100; uid++ {
		expect.OK(t, os.Mkdir(filepath.Join(temp, fmt.Sprintf("ration-%d", uid)), 0o700))
	}
	p := Paths{Temp: temp, Home: func(int) string { return "" }}
	found, all := p.Folders()
	expect.True(t, len(found) == 1 && found[0].UID == own && len(found[0].Paths()) == 1 && all, found, all)
}

// A user's job of a name is found in any of the folders, if the folder and the region are that
// user's, and through no link.
func TestNamed(t *testing.T) {
	testenv.NeedsRoot(t, "only root makes folders of other users")
	const alice, bob = 61011, 61012
	dir := t.TempDir()
	p := Paths{Runtime: filepath.Join(dir, "run"), Temp: filepath.Join(dir, "tmp"), Home: func(uid int) string { return filepath.Join(dir, "home", fmt.Sprint(uid)) }}
	put := func(uid int, folder, name string) {
		expect.OK(t, os.MkdirAll(filepath.Join(folder, name), 0o755))
		expect.OK(t, os.Chown(folder, uid, uid))
		expect.OK(t, os.WriteFile(filepath.Join(folder, name, RegionName), nil, 0o600))
		expect.OK(t, os.Chown(filepath.Join(folder, name, RegionName), uid, uid))
	}
	run, temp, home := filepath.Join(p.Runtime, fmt.Sprint(alice), "ration"), filepath.Join(p.Temp, fmt.Sprint("ration-", alice)), filepath.Join(p.Home(alice), ".local/state/ration")
	put(alice, run, "a")
	put(alice, temp, "a")
	put(alice, home, "b")
	put(bob, filepath.Join(dir, "bobs"), "c")
	expect.OK(t, os.Symlink(filepath.Join(dir, "bobs", "c"), filepath.Join(run, "linked")))
	expect.OK(t, os.Lchown(filepath.Join(run, "linked"), alice, alice))
	put(bob, run, "c") // a region of another user's in alice's folder
	put(bob, filepath.Join(p.Temp, fmt.Sprint("ration-", 61013)), "d")
	for _, c := range []struct {
		uid  int
		name string
		want []string
	}{
		{alice, "a", []string{temp, run}}, {alice, "b", []string{home}}, {alice, "c", nil}, {alice, "linked", nil}, {bob, "a", nil}, {bob, "c", nil},
		{61013, "d", nil}, {alice, "../" + fmt.Sprint(alice), nil}, {alice, "none", nil},
	} {
		var got []string
		for _, j := range p.Named(c.uid, c.name) {
			got = append(got, strings.TrimSuffix(j.Path, "/"+c.name+"/"+RegionName))
		}
		expect.True(t, slices.Equal(got, c.want), c.uid, "/", c.name, got, c.want)
	}
}

// However many names, or users with a folder and nothing else, there are in /tmp, a bounded number is read. A
// user with a process is found without.
func TestFoldersInFlood(t *testing.T) {
	testenv.NeedsRoot(t, "only root makes folders and processes of other users")
	const first, users = 61000, 50
	for name, c := range map[string]struct {
		listed, strange, floods int
		withProcess             []int // users that have one
		want                    int
	}{
		"names": {listed: 10, floods: 100, withProcess: []int{first, first + 1, first + users - 1}, want: 3},
		"users": {strange: 5, withProcess: []int{first, first + users - 1}, want: 7},
	} {
		p := Paths{Temp: t.TempDir(), Proc: t.TempDir(), Home: func(int) string { return "" }, listed: c.listed, strange: c.strange}
		own := func(uid int, dir string) { expect.OK(t, errors.Join(os.Mkdir(dir, 0o755), os.Chown(dir, uid, uid))) }
		for uid := first; uid < first+users; uid++ {
			own(uid, filepath.Join(p.Temp, fmt.Sprint("ration-", uid)))
		}
		for _, uid := range c.withProcess {
			own(uid, filepath.Join(p.Proc, fmt.Sprint(uid)))
		}
		for n := range c.floods {
			expect.OK(t, os.WriteFile(filepath.Join(p.Temp, fmt.Sprint("flood", n)), nil, 0o600))
		}
		found, all := p.Folders()
		missing := map[int]bool{}
		for _, uid := range c.withProcess {
			missing[uid] = true
		}
		for _, f := range found {
			if len(f.Paths()) == 1 {
				delete(missing, f.UID)
			}
		}
		most := c.want + c.listed
		expect.True(t, !all && len(missing) == 0 && len(found) >= c.want && len(found) <= most, name, "without", missing, found, all)
	}
}

// A process is named once, however many slots it has, so that it hides no other.
func TestLivingErrorNamesEach(t *testing.T) {
	e := &LivingError{Job: Job{Name: "x"}}
	for i := range 100 {
		e.Living = append(e.Living, region.Process{Slot: i, Seen: os.Getpid(), Name: "a"})
	}
	for i := range 10 {
		e.Living = append(e.Living, region.Process{Slot: 100 + i, PID: i, Name: "unseen"}, region.Process{Slot: 200 + i, Seen: os.Getppid(), Name: "b"})
	}
	text := e.Error()
	for pid, want := range map[int]int{os.Getpid(): 1, os.Getppid(): 1} {
		expect.Equal(t, strings.Count(text, fmt.Sprintf(" pid %d (", pid)), want, "pid", pid, "is named so often in", text)
	}
	expect.True(t, strings.Count(text, "cannot be seen") == maxNamed-2 && strings.Contains(text, "and 4 others"), text)
}
