package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"ration/internal/agent"
	"ration/internal/agent/privsep"
	"ration/internal/notify"
	"ration/internal/policy"
	"ration/machine"
)

type notifyFlags struct {
	config  string
	check   bool
	test    bool
	logJSON bool
}

func newNotifyCommand(a *app) *cobra.Command {
	f := notifyFlags{}
	cmd := &cobra.Command{
		Use:   "notify",
		Short: "Tell people and programs when something goes wrong",
		Long: `Send notifications, as the [[notify]] sections of ` + policy.ConfigFile + `
say, until SIGTERM or Ctrl-C. A section has what to hear of, and one way:

  [[notify]]
  events = ["policy-refused", "gpu-failed"]    # left out: all kinds
  command = ["/usr/local/bin/page", "--gpu"]   # reads a line of JSON

  [[notify]]
  url = "https://example.com/hook"             # gets a POST of the same JSON

  [[notify]]
  url_file = "/etc/ration/slack.url"           # the URL is in this file
  format = "slack"

  [[notify]]
  format = "email"                             # by /usr/sbin/sendmail
  to = ["admin@example.com"]                   # from = "..." if need be

Kinds of events: refusal (a request of a job was refused), death (of a process),
stop (the agent has ended processes of a job over its limit), policy-refused (a
user got no ration), over-limit (the driver counts more for a job than its
limit), near-limit (a job holds 95 % of its limit), idle (a job holds memory
and has done nothing for a while), gpu-failed.

A problem is reported when it begins. If it happens again within ten minutes, it
is only counted. A user's jobs cause at most 20 notifications in ten minutes.
Each section sends at most 10 at once, and then one in ten seconds. A URL that
does not answer is tried six times. The log, on standard error, says what was
not sent.

Run as root, it runs commands, requests and sendmail as user nobody, without an
environment, for at most 30 seconds. It needs a running agent (ration agent).
A change of the file is taken over within seconds; without a section it sends
nothing, and waits for one. On a machine with systemd, ration-notify.service
runs it. There a command sees a read-only file system. It
can write in /tmp and /var/tmp, which are the service's own: other programs do
not see these files, and they are gone when the service ends. Another folder
takes ReadWritePaths= (systemctl edit ration-notify). A command of --test is not
in the service, and can write where the service cannot.

Exit status: 0 when it was asked to end; 1 if it could not start, with --test if
a section failed, or with --check if its program or url_file is not there; 2 if
the file is wrong, or with --check and --test has no section.`,
		Example: "  ration notify --check\n  ration notify --test\n  systemctl enable --now ration-notify",
		Args:    noArgs,
		RunE:    func(*cobra.Command, []string) error { return a.runNotify(f) },
	}
	cmd.Flags().StringVar(&f.config, "config", policy.ConfigFile, "read this `file`")
	cmd.Flags().BoolVar(&f.check, "check", false, "only check the file")
	cmd.Flags().BoolVar(&f.test, "test", false, "send one notification to each section, print whether that worked, and end")
	cmd.Flags().BoolVar(&f.logJSON, "log-json", false, "write the log as JSON, a line each")
	cmd.MarkFlagsMutuallyExclusive("check", "test")
	return cmd
}

// newDeliverCommand returns the command that delivers one notification in a process without rights.
func newDeliverCommand(*app) *cobra.Command {
	return &cobra.Command{Use: notify.DeliverCommand, Hidden: true, DisableFlagParsing: true,
		RunE: func(_ *cobra.Command, args []string) error {
			status, err := notify.Deliver(args, os.Stdin)
			if err != nil {
				return statusError{err, status}
			}
			return nil
		}}
}

// Notified is what `ration notify --check --json` and `--test --json` print.
type Notified struct {
	File     string           `json:"file"`
	Right    bool             `json:"right"`
	Problems []policy.Problem `json:"problems"`
	Sections []NotifySection  `json:"sections"`
}

// NotifySection is a [[notify]] section of the file.
type NotifySection struct {
	To     string   `json:"to"`              // the way: a program, a host or addresses
	Events []string `json:"events"`          // kinds that it sends
	Sent   *bool    `json:"sent,omitempty"`  // for --test: whether that worked
	Error  string   `json:"error,omitempty"` // why not; for --check: what is not there
}

func (a *app) runNotify(f notifyFlags) error {
	if a.json && !f.check && !f.test {
		return usageError("ration notify prints no result (for a log in JSON use --log-json; for one try --test --json)")
	}
	rules, text, err := readNotify(f.config)
	var wrong *policy.ConfigError
	if a.json && errors.As(err, &wrong) {
		if err := a.out.printJSON(Notified{File: f.config, Problems: wrong.Problems, Sections: []NotifySection{}}); err != nil {
			return err
		}
		return statusError{errReported, ExitUsage}
	}
	if err != nil {
		return err
	}
	if len(rules) == 0 && (f.check || f.test) {
		return statusError{fmt.Errorf("%s has no [[notify]] section (ration notify --help shows one)", f.config), ExitUsage}
	}
	ctx, stop := untilSignal()
	defer stop()
	if f.check || f.test {
		return a.testNotify(ctx, f, rules)
	}
	if err := privsep.Isolate(); err != nil {
		return err
	}
	n := &notifier{file: f.config, text: text, log: newLog(a.err.Writer, f.logJSON)}
	n.run(ctx, rules)
	return nil
}

// readNotify reads a file that, for root, only root can change.
func readNotify(file string) ([]notify.Rule, []byte, error) {
	if os.Geteuid() == 0 {
		if err := policy.Trusted(file); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, nil, err
		}
	}
	return policy.ReadNotify(file)
}

// testNotify prints the sections of a file. With --test it first sends a notification to each.
func (a *app) testNotify(ctx context.Context, f notifyFlags, rules []notify.Rule) error {
	out := Notified{File: f.config, Right: true, Problems: []policy.Problem{}, Sections: []NotifySection{}}
	failed := 0
	for i := range rules {
		r := &rules[i]
		s := NotifySection{To: r.Title(), Events: r.Events}
		if len(s.Events) == 0 {
			s.Events = notify.Kinds
		}
		if f.test {
			n := notify.NewTest(time.Now())
			err := r.Send(ctx, &n)
			sent := err == nil
			if s.Sent = &sent; err != nil {
				s.Error = err.Error()
				failed++
			}
		}
		if f.check {
			if err := r.Check(); err != nil {
				s.Error, out.Right = err.Error(), false
				failed++
			}
		}
		out.Sections = append(out.Sections, s)
	}
	err := a.print(out, func() {
		for _, s := range out.Sections {
			switch {
			case s.Sent == nil && s.Error != "":
				a.out.printf("%s: does not work: %s\n", s.To, s.Error)
			case s.Sent == nil:
				a.out.printf("%s: %s\n", s.To, strings.Join(s.Events, ", "))
			case *s.Sent:
				a.out.printf("%s: sent\n", s.To)
			default:
				a.out.printf("%s: not sent: %s\n", s.To, s.Error)
			}
		}
	})
	if err == nil && failed > 0 {
		return statusError{errReported, ExitFailed}
	}
	return err
}

// notifier follows an agent and sends notifications.
type notifier struct {
	file string
	text []byte // of the file whose rules count
	log  *slog.Logger

	wrong string // problem of the file as it is now
}

const (
	notifyTick  = 5 * time.Second // how often the file and the time are looked at
	notifyRetry = 2 * time.Second // how often an agent is looked for
)

// run follows agents until the context ends.
func (n *notifier) run(ctx context.Context, rules []notify.Rule) {
	sender := notify.NewDispatcher(rules, n.log)
	defer func() { sender.Close() }()
	watcher := notify.NewWatcher(n.log, time.Now())
	updates := make(chan agent.Update)
	go n.follow(ctx, updates)
	tick := time.NewTicker(notifyTick)
	defer tick.Stop()
	n.log.Info("notifying", "sections", len(rules), "file", n.file, "version", version)
	n.warnEmpty(rules)
	agent.Notify("READY=1")
	var latest *machine.Machine
	for {
		var events []machine.Event
		select {
		case <-ctx.Done():
			agent.Notify("STOPPING=1")
			return
		case u := <-updates:
			latest, events = u.Machine, u.Events
		case <-tick.C:
			if rules, changed := n.reread(); changed {
				sender.Close()
				sender = notify.NewDispatcher(rules, n.log)
				n.log.Info("the file has changed", "sections", len(rules))
				n.warnEmpty(rules)
			}
		}
		if latest == nil {
			continue
		}
		for _, one := range watcher.Update(latest, events, time.Now()) {
			sender.Send(one)
		}
	}
}

func (n *notifier) warnEmpty(rules []notify.Rule) {
	if len(rules) == 0 {
		n.log.Warn("the file has no [[notify]] section: nothing is sent until it has one (ration notify --help shows one)", "file", n.file)
	}
}

// reread returns the rules of the file if it has changed. While it is wrong, the last rules stay.
func (n *notifier) reread() (rules []notify.Rule, changed bool) {
	rules, text, err := readNotify(n.file)
	if err == nil && bytes.Equal(text, n.text) {
		n.wrong = ""
		return nil, false
	}
	if err != nil {
		if err.Error() != n.wrong { // say it once
			n.log.Error("the file is wrong, and the last one counts", "error", err)
		}
		n.wrong = err.Error()
		return nil, false
	}
	n.text, n.wrong = text, ""
	return rules, true
}

// follow passes on what agents say, one after the other.
func (n *notifier) follow(ctx context.Context, updates chan<- agent.Update) {
	silent := false
	for ctx.Err() == nil {
		err := n.followOne(ctx, func(u agent.Update) {
			silent = false
			select {
			case updates <- u:
			case <-ctx.Done():
			}
		})
		if !silent && err != nil && ctx.Err() == nil {
			n.log.Warn("no agent answers, so nothing is noticed (start ration agent)", "error", err)
			silent = true
		}
		after(ctx, notifyRetry)
	}
}

func (n *notifier) followOne(ctx context.Context, pass func(agent.Update)) error {
	c, err := agent.Find()
	if err != nil {
		return err
	}
	for u, err := range c.Watch(ctx) {
		if err != nil {
			return err
		}
		pass(u)
	}
	return nil
}
