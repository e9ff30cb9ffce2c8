package region

import "testing"

func TestListsLock(t *testing.T) {
	const other = "pos:\t0\nflags:\t02100002\nmnt_id:\t30\nino:\t1042\n"
	for line, want := range map[string]bool{
		"lock:\t1: POSIX  ADVISORY  WRITE 4711 00:19:1042 20480 20480\n":                                                       true,
		"lock:\t1: POSIX  ADVISORY  WRITE 4711 00:19:1042 0 EOF\n":                                                             true,
		"lock:\t1: POSIX  ADVISORY  WRITE 4711 00:19:1042 7 7\nlock:\t2: POSIX  ADVISORY  WRITE 4711 00:19:1042 20000 30000\n": true,
		"":                      false,
		"lock:\t1: POSIX\n":     false,
		"lock:\t\nlock:\nlock:": false,
		"lock:\t1: POSIX  ADVISORY  READ 4711 00:19:1042 20480 20480\n":           false,
		"lock:\t1: FLOCK  ADVISORY  WRITE 4711 00:19:1042 0 EOF\n":                false,
		"lock:\t1: OFDLCK ADVISORY  WRITE -1 00:19:1042 0 EOF\n":                  false,
		"lock:\t1: POSIX  ADVISORY  WRITE 4712 00:19:1042 20480 20480\n":          false,
		"lock:\t1: POSIX  ADVISORY  WRITE 4711 00:19:1042 20481 20481\n":          false,
		"lock:\t1: POSIX  ADVISORY  WRITE 4711 00:19:1042 0 20479\n":              false,
		"lock:\t1: POSIX  ADVISORY  WRITE 4711 00:19:1042 twenty EOF\n":           false,
		"lock:\t1: POSIX  ADVISORY  WRITE 4711 00:19:1042 0 99999999999999999999": false,
	} {
		if got := parseLockList([]byte(other+line), 4711).has(20480); got != want {
			t.Errorf("%q: %v", line, got)
		}
	}
}
