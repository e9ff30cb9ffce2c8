package job

import (
	"os"
	"path/filepath"
	"strings"
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
