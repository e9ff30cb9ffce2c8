package proc

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// passwd is the machine's own list of users.
var passwd = "/etc/passwd"

// LocalUser returns the UID and group of a user in /etc/passwd, or ErrNoUser. It does not query a
// directory service, which may not respond, and may have a person of that name.
func LocalUser(name string) (uid, gid uint32, err error) {
	f, err := os.Open(passwd)
	if err != nil {
		return 0, 0, fmt.Errorf("looking up user %s: %w", name, err)
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		field := strings.Split(lines.Text(), ":")
		if len(field) < 4 || field[0] != name {
			continue
		}
		u, err := strconv.ParseUint(field[2], 10, 32)
		if err != nil {
			return 0, 0, fmt.Errorf("looking up user %s: %w", name, err)
		}
		g, err := strconv.ParseUint(field[3], 10, 32)
		if err != nil {
			return 0, 0, fmt.Errorf("looking up the group of user %s: %w", name, err)
		}
		return uint32(u), uint32(g), nil
	}
	return 0, 0, fmt.Errorf("%s: %w", name, ErrNoUser)
}
