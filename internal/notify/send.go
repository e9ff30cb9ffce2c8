package notify

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"ration/internal/agent/privsep"
	"ration/internal/proc"
)

// sendTimeout is how long a command, a request or sendmail may take before it is killed. It is a variable for
// tests.
var sendTimeout = 30 * time.Second

// maxURL bounds the file with a URL, in bytes.
const maxURL = 8 << 10

// errPasses is returned if sending may succeed later.
var errPasses = errors.New("it may work later")

// Send delivers a notification and waits for the result.
func (r *Rule) Send(ctx context.Context, n *Notification) error {
	body, err := r.body(n)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	switch {
	case len(r.Command) > 0:
		return run(ctx, deliverCommand(append([]string{execCommand, "--"}, r.Command...), nil), body)
	case r.Format == Email:
		// Not by Deliver: to queue a mail, sendmail may need the rights of the mail system's group.
		cmd := exec.Command(r.Sendmail, append([]string{"-i", "--"}, r.To...)...)
		return run(ctx, cmd, body)
	}
	address, err := r.address()
	if err != nil {
		return err
	}
	request, err := json.Marshal(post{address, body})
	if err != nil {
		return err
	}
	return ofDeliver(run(ctx, deliverCommand([]string{postCommand}, proxies()), request))
}

// ofDeliver returns the error of a process of Deliver without what is about the process: how it ended, and its name.
func ofDeliver(err error) error {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return err
	}
	_, text, _ := strings.Cut(err.Error(), exit.Error()+": ")
	text = strings.TrimPrefix(text, "ration: ")
	switch {
	case text == "":
		return err
	case errors.Is(err, errPasses):
		return fmt.Errorf("%s (%w)", text, errPasses)
	}
	return errors.New(text)
}

// Check returns an error if what the rule uses on this machine does not exist: a program, or the file with a URL.
func (r *Rule) Check() error {
	program := r.Sendmail
	switch {
	case len(r.Command) > 0:
		program = r.Command[0]
	case r.Format != Email:
		_, err := r.address()
		return err
	}
	if _, err := exec.LookPath(program); err != nil {
		return fmt.Errorf("finding the program %s: %w", program, cmp.Or(errors.Unwrap(errors.Unwrap(err)), errors.Unwrap(err)))
	}
	return nil
}

// address returns the URL. It reads the file each time, so that a new URL needs no restart.
func (r *Rule) address() (string, error) {
	if r.URLFile == "" {
		return r.URL, nil
	}
	f, err := os.OpenFile(r.URLFile, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", fmt.Errorf("reading the URL: %w", err)
	}
	defer f.Close()
	text := make([]byte, maxURL)
	n, err := f.Read(text)
	if err != nil {
		return "", fmt.Errorf("reading the URL in %s: %w", r.URLFile, err)
	}
	line, _, _ := strings.Cut(string(text[:n]), "\n")
	address := strings.TrimSpace(line)
	if err := CheckURL(address); err != nil {
		return "", fmt.Errorf("reading the URL in %s: %w", r.URLFile, err)
	}
	return address, nil
}

// deliverCommand returns a command that runs Deliver in a process of this program.
func deliverCommand(args, env []string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe")
	cmd.Args, cmd.Env = append([]string{"ration", DeliverCommand}, args...), env
	return cmd
}

// proxies returns the variables that name a proxy for HTTP.
func proxies() (out []string) {
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"} {
		if value := os.Getenv(name); value != "" {
			out = append(out, name+"="+value)
		}
	}
	return out
}

// run runs a command with input on its standard input: as nobody, if this process is root's.
func run(ctx context.Context, cmd *exec.Cmd, input []byte) error {
	cmd.Stdin = bytes.NewReader(input)
	uid, gid := nobody()
	err := privsep.RunAs(ctx, cmd, uid, gid)
	var exit *exec.ExitError
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("it did not end in %v, and was killed: %w", sendTimeout, err)
	case errors.As(err, &exit) && exit.ExitCode() == exitPasses:
		return fmt.Errorf("%w: %w", errPasses, err)
	}
	return err
}

// nobody returns the user and group without rights.
func nobody() (uid, gid uint32) {
	const id = 65534
	if uid, gid, err := proc.LocalUser("nobody"); err == nil && uid != 0 && gid != 0 {
		return uid, gid
	}
	return id, id
}
