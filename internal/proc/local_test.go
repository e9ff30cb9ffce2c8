package proc

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"ration/check/expect"
)

func TestLocalUser(t *testing.T) {
	defer func(was string) { passwd = was }(passwd)
	passwd = filepath.Join(t.TempDir(), "passwd")
	if _, _, err := LocalUser("ration"); err == nil || errors.Is(err, ErrNoUser) {
		t.Errorf("without a list: %v", err)
	}
	const list = "root:x:0:0:root:/root:/bin/sh\n+::::::\n\nrations:x:7:8::/:/\n#ration:x:9:9::/:/\nration:x:997:996:Agent of ration:/:/usr/sbin/nologin\nbad:x:-1:5::/:/\nworse:x:5:4294967296::/:/\n"
	expect.OK(t, os.WriteFile(passwd, []byte(list), 0o644))
	if uid, gid, err := LocalUser("ration"); uid != 997 || gid != 996 || err != nil {
		t.Errorf("got %d, %d, %v", uid, gid, err)
	}
	if _, _, err := LocalUser("rat"); !errors.Is(err, ErrNoUser) {
		t.Errorf("got %v", err)
	}
	for _, name := range []string{"bad", "worse"} {
		_, _, err := LocalUser(name)
		expect.True(t, err != nil && !errors.Is(err, ErrNoUser), name, err)
	}
}
