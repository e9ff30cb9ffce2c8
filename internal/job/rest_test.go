package job

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ration/check/expect"
)

// What a file says of a job's rest counts only while the process that watches the job lives.
func TestRest(t *testing.T) {
	folder := t.TempDir()
	read := func() *Rest {
		dir, err := unix.Open(folder, unix.O_RDONLY|unix.O_DIRECTORY, 0)
		expect.OK(t, err)
		defer unix.Close(dir)
		return readRest(dir)
	}
	expect.True(t, read() == nil, "a rest without a file")
	f, err := WatchRest(folder)
	expect.OK(t, err)
	expect.True(t, read() == nil, "a rest of an empty file")
	long := Rest{After: time.Minute, Since: 7, Cannot: strings.Repeat("x", maxRest)}
	expect.OK(t, f.Write(long))
	expect.OK(t, f.Write(Rest{After: time.Minute, Manual: true, Since: 8, Cannot: "a\nb"}))
	is := read()
	expect.Must(t, is != nil, "no rest")
	expect.True(t, is.After == time.Minute && is.Manual && is.Since == 8 && !strings.Contains(is.Cannot, "\n"), *is)
	second, err := WatchRest(folder) // of a command that joined the job
	expect.OK(t, err)
	f.Close()
	expect.True(t, read() != nil, "the second of two watches")
	second.Close()
	expect.True(t, read() == nil, "what a process that has ended wrote counts")

	f, err = WatchRest(folder)
	expect.OK(t, err)
	defer f.Close()
	for _, text := range []string{"", "{}\n", `{"after":5`, `{"after":-5}` + "\n", `{"after":5,"since":1}`, strings.Repeat(" ", maxRest) + "\n"} {
		expect.OK(t, os.WriteFile(filepath.Join(folder, restName), []byte(text), 0o600))
		expect.True(t, read() == nil, "a rest from", text)
	}
}

// A user whose job root's service watches reads why it cannot sleep, and can write nothing into root's folder: neither
// the file, nor after a change of its mode. Other users cannot read it.
func TestRestOfRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	folder := t.TempDir()
	expect.OK(t, errors.Join(os.Chmod(filepath.Dir(folder), 0o755), os.Chmod(folder, 0o755)))
	path := filepath.Join(folder, restName)
	f, err := WatchRest(folder)
	expect.OK(t, err)
	defer f.Close()
	expect.OK(t, errors.Join(f.ShowTo(4001), f.Write(Rest{After: time.Minute, Cannot: "why"})))
	says := func(uid uint32, script string) string {
		cmd := exec.Command("/bin/sh", "-c", script, "sh", path)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		out, err := cmd.CombinedOutput()
		if err != nil {
			return err.Error()
		}
		return string(out)
	}
	line := `{"after":60000000000,"cannot":"why"}` + "\n"
	expect.Equal(t, says(4001, `cat "$1"`), line)
	expect.Equal(t, says(4002, `cat "$1" 2>/dev/null`), "exit status 1")
	expect.Equal(t, says(4001, `chmod 600 "$1" 2>/dev/null; { echo x >>"$1"; } 2>/dev/null || echo refused`), "refused\n")
	is, err := os.ReadFile(path)
	expect.OK(t, err)
	expect.Equal(t, string(is), line)
}
