package deploy

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"ration/check/expect"
	"ration/check/testenv"
)

// systemd makes the user as whom the agent reads, and its folder, from our files: in a root of the test's own.
func TestSysusers(t *testing.T) {
	testenv.NeedsRoot(t, "only root can make users")
	testenv.HasTool(t, "systemd-sysusers")
	testenv.HasTool(t, "systemd-tmpfiles")
	root := t.TempDir()
	for from, to := range map[string]string{"sysusers.conf": "usr/lib/sysusers.d/ration.conf", "tmpfiles.conf": "usr/lib/tmpfiles.d/ration.conf"} {
		text, err := os.ReadFile(from)
		to = filepath.Join(root, to)
		expect.OK(t, errors.Join(err, os.MkdirAll(filepath.Dir(to), 0o755), os.WriteFile(to, text, 0o644)))
	}
	expect.OK(t, os.Mkdir(filepath.Join(root, "etc"), 0o755))
	for _, command := range [][]string{{"systemd-sysusers", "--root=" + root}, {"systemd-tmpfiles", "--create", "--root=" + root}} {
		out, err := exec.Command(command[0], command[1:]...).CombinedOutput()
		expect.OK(t, err, command, out)
	}
	passwd, err := os.ReadFile(filepath.Join(root, "etc/passwd"))
	expect.OK(t, err)
	entry := regexp.MustCompile(`(?m)^ration:[x!*]*:(\d+):(\d+):Agent of ration:/:\S*nologin$`).FindStringSubmatch(string(passwd))
	expect.Must(t, entry != nil, "the list of users", passwd)
	folder, err := os.Stat(filepath.Join(root, "run/ration-agent"))
	expect.OK(t, err)
	st := folder.Sys().(*syscall.Stat_t)
	expect.True(t, folder.Mode() == os.ModeDir|0o700 && fmt.Sprint(st.Uid) == entry[1] && fmt.Sprint(st.Gid) == entry[2],
		"the folder is", folder.Mode(), "of", st.Uid, st.Gid, "the user is", entry[0])
}

// The packages make the user by what the system has for that, once, and the folder; and go on where there is
// nothing.
func TestPackageMakesUser(t *testing.T) {
	testenv.NeedsRoot(t, "only root can mount")
	// id knows the user when one of the others has made it.
	const id, maker, failing, other = `[ "$1" != ration ] || [ -e /run/made ]`, `echo "${0##*/} $*" >>/run/calls; : >/run/made`, `exit 1`, `echo "${0##*/} $*" >>/run/calls`
	for name, test := range map[string]struct {
		programs map[string]string
		made     bool
		want     string
	}{
		"systemd":  {programs: map[string]string{"systemd-sysusers": maker, "useradd": failing}, want: "systemd-sysusers ration.conf"},
		"useradd":  {programs: map[string]string{"useradd": maker, "adduser": failing}, want: "useradd --system --user-group --no-create-home --home-dir / --shell /usr/sbin/nologin --comment Agent of ration ration"},
		"adduser":  {programs: map[string]string{"adduser": maker}, want: "adduser --system --no-create-home --home / ration"},
		"is there": {programs: map[string]string{"systemd-sysusers": maker, "useradd": maker}, made: true},
		"fails":    {programs: map[string]string{"systemd-sysusers": failing}, want: "no user ration could be made"},
		"nothing":  {want: "no user ration could be made"},
	} {
		bin := t.TempDir()
		for _, tool := range []string{"sh", "mkdir", "cat", "grep"} {
			path, err := exec.LookPath(tool)
			expect.OK(t, errors.Join(err, os.Symlink(path, filepath.Join(bin, tool))))
		}
		programs := map[string]string{"id": id, "chown": other}
		for program, text := range test.programs {
			programs[program] = text
		}
		for program, text := range programs {
			expect.OK(t, os.WriteFile(filepath.Join(bin, program), []byte("#!/bin/sh\n"+text+"\n"), 0o755))
		}
		made := ":"
		if test.made {
			made = ": >/run/made"
		}
		cmd := exec.Command("unshare", "--mount", "sh", "-c", `mount -t tmpfs none /etc && mount -t tmpfs none /run && mount -t tmpfs none /var/lib && : >/run/calls && `+made+` && PATH=$0 && sh ./postinst configure && cat /run/calls && ls=$(echo /run/ration*) && echo "$ls"`, bin)
		out, err := cmd.CombinedOutput()
		folder, chowned := strings.Contains(string(out), "/run/ration /run/ration-agent\n"), strings.Contains(string(out), "chown ration: /run/ration-agent /var/lib/ration-agent\n")
		wantFolder := !strings.HasPrefix(test.want, "no user")
		expect.True(t, err == nil && folder == wantFolder && chowned == wantFolder && strings.Contains(string(out), test.want) && (!test.made || !strings.Contains(string(out), "add")), name, err, out)
	}
}
