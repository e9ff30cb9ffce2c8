package policy

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net/mail"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2/unstable"

	"ration/internal/notify"
)

// The operator's file also says who hears of what (package notify). That part needs no policy in force, and is
// left out of InForceFile, which everybody can read: a URL may be a secret.

// notifyText is the format of a [[notify]] section.
type notifyText struct {
	Events   []string `toml:"events"`
	Format   *string  `toml:"format"`
	Command  []string `toml:"command"`
	URL      *string  `toml:"url"`
	URLFile  *string  `toml:"url_file"`
	To       []string `toml:"to"`
	From     *string  `toml:"from"`
	Sendmail *string  `toml:"sendmail"`
}

// sendmail is the default program of the format email.
const sendmail = "/usr/sbin/sendmail"

// ReadNotify returns the [[notify]] sections of a file, and the text of the file. The file need not be a whole
// policy.
func ReadNotify(file string) (rules []notify.Rule, text []byte, err error) {
	text, err = os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("there is no %s (ration notify --help shows what to write into it)", file)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("reading the file: %w", err)
	}
	if len(text) > maxConfig {
		return nil, nil, fmt.Errorf("%s: %d bytes (it may have %d)", file, len(text), maxConfig)
	}
	r := newReader(file)
	rules = r.notifyRules(r.decode(text).Notify)
	return rules, text, r.err()
}

// notifyRules checks the [[notify]] sections.
func (r *reader) notifyRules(all []notifyText) (out []notify.Rule) {
	for i := range all {
		out = append(out, r.notifyRule(join("notify", index(i)), &all[i]))
	}
	return out
}

func (r *reader) notifyRule(path string, t *notifyText) notify.Rule {
	text := func(value *string, otherwise string) string {
		if value == nil {
			return otherwise
		}
		return *value
	}
	out := notify.Rule{Events: t.Events, Format: text(t.Format, notify.JSON), Command: t.Command, URL: text(t.URL, ""), URLFile: text(t.URLFile, ""),
		To: t.To, From: text(t.From, ""), Sendmail: text(t.Sendmail, sendmail)}
	at := func(key string) string { return join(path, key) }
	for _, kind := range t.Events {
		if !slices.Contains(notify.Kinds, kind) {
			r.problem(at("events"), "events: %q is not a kind of notification (use some of %s, or leave events out for all)", kind, strings.Join(notify.Kinds, ", "))
		}
	}
	known := slices.Contains([]string{notify.JSON, notify.Slack, notify.Email}, out.Format)
	if !known {
		r.problem(at("format"), "format = %q: there are json, slack and email", out.Format)
	}
	ways := 0
	for _, has := range []bool{t.Command != nil, t.URL != nil, t.URLFile != nil, t.To != nil} {
		if has {
			ways++
		}
	}
	switch {
	case ways == 0 && r.incomplete[path]: // its problem is known
	case out.Format == notify.Email && t.To == nil:
		r.problem(path, `notify: no address (as to = ["admin@example.com"])`)
	case ways > 1:
		r.problem(path, "notify: only one of command, url, url_file and to may be given (write a section for each)")
	case ways == 0:
		r.problem(path, `notify: one of command, url, url_file and to is needed (as command = ["/usr/local/bin/page"])`)
	case out.Format == notify.Slack && t.Command != nil:
		r.problem(at("format"), "format = %q: a command reads json", out.Format)
	}
	for key, set := range map[string]bool{"to": t.To != nil, "from": t.From != nil, "sendmail": t.Sendmail != nil} {
		switch {
		case set && out.Format == notify.JSON && t.Format == nil && t.To != nil:
			r.problem(at(key), `%s: is for e-mail (add format = "email")`, key)
		case set && known && out.Format != notify.Email:
			r.problem(at(key), `%s: is for e-mail, and format is %q (use format = "email", or leave it out)`, key, out.Format)
		}
	}
	r.checkPlaces(at, t)
	r.checkAddresses(at, t)
	return out
}

// checkPlaces checks the paths and the URL of a section.
func (r *reader) checkPlaces(at func(string) string, t *notifyText) {
	absolute := func(key, path string) {
		if !filepath.IsAbs(path) {
			r.problem(at(key), "%s: %q is not an absolute path", key, path)
		}
	}
	if t.Command != nil {
		absolute("command", strings.Join(t.Command[:min(1, len(t.Command))], ""))
	}
	for key, path := range map[string]*string{"url_file": t.URLFile, "sendmail": t.Sendmail} {
		if path != nil {
			absolute(key, *path)
		}
	}
	if t.URL != nil {
		if err := notify.CheckURL(*t.URL); err != nil {
			r.problem(at("url"), "url: %v", err)
		}
	}
}

// checkAddresses checks the addresses of e-mails. They are arguments of sendmail and lines of a header.
func (r *reader) checkAddresses(at func(string) string, t *notifyText) {
	check := func(key, address string) {
		parsed, err := mail.ParseAddress(address)
		if err != nil || parsed.Address != address || strings.HasPrefix(address, "-") {
			r.problem(at(key), "%s: %q is not an address (as admin@example.com)", key, address)
		}
	}
	if t.To != nil && len(t.To) == 0 {
		r.problem(at("to"), `to: no address (as to = ["admin@example.com"])`)
	}
	for _, address := range t.To {
		check("to", address)
	}
	if t.From != nil {
		check("from", *t.From)
	}
}

// IsOf reports whether a file with this text has this policy. What it says about notifications does not count.
func (p *Policy) IsOf(text []byte) bool { return bytes.Equal(withoutNotify(text), p.Text) }

// withoutNotify returns the text of a valid file with empty lines in the place of its [[notify]] sections.
func withoutNotify(text []byte) []byte {
	var p unstable.Parser
	p.Reset(text)
	lines := bytes.SplitAfter(text, []byte("\n"))
	from, inside := 0, false // the line where the sections to leave out begin
	drop := func(to int) {
		for i := from; inside && i < to; i++ {
			lines[i] = []byte("\n")
		}
	}
	root, section := true, false // above all sections; in a [[notify]] section
	for p.NextExpression() {
		n := p.Expression()
		key := n.Key()
		if !key.Next() {
			continue
		}
		if n.Kind != unstable.KeyValue {
			root, section = false, string(key.Node().Data) == "notify"
		}
		out := section || root && string(key.Node().Data) == "notify"
		line := p.Shape(key.Node().Raw).Start.Line - 1
		if !out {
			drop(line)
			inside = false
		} else if !inside {
			from, inside = line, true
		}
	}
	drop(len(lines))
	return bytes.Join(lines, nil)
}
