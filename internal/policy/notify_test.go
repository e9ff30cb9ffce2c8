package policy

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ration/check/expect"
	"ration/internal/notify"
)

// Each mistake in a [[notify]] section is found where it is, together with those of the policy.
func TestNotifyProblems(t *testing.T) {
	const head = "[everybody]\nmemory = \"1g\"\n[[notify]]\n"
	for _, c := range []struct {
		text string
		want []string
	}{
		{head + "command = [\"/bin/true\", \"-x\"]\n", nil},
		{head + "url = \"https://example.com/a\"\nformat = \"slack\"\nevents = [\"death\", \"gpu-failed\"]\n", nil},
		{head + "format = \"email\"\nto = [\"a@b.example\"]\nfrom = \"c@d.example\"\n", nil},
		{head, []string{"3:3: notify: one of command, url, url_file and to is needed"}},
		{head + "command = \"/bin/true\"\n", []string{`4:1: command = "/bin/true": a list is needed (as command = ["/usr/local/bin/page"])`}},
		{head + "command = [\"true\"]\n", []string{`4:1: command: "true" is not an absolute path`}},
		{head + "command = []\n", []string{`4:1: command: "" is not an absolute path`}},
		{head + "url = \"ftp://x/secret\"\n[[notify]]\nurl = 5\ncolor = 1\n", []string{"4:1: url: not a URL", `6:1: url = 5: text in quotes is needed (as url = "https://example.com/hook")`, "7:1: notify.color: no such key"}},
		{head + "url = \"https://x/y\"\nevents = [\"fire\"]\n", []string{`5:1: events: "fire" is not a kind of notification (use some of refusal, death, stop,`}},
		{head + "url = \"https://x/y\"\nformat = \"pigeon\"\n", []string{`5:1: format = "pigeon": there are json, slack and email`}},
		{head + "url = \"ftp://x\"\nformat = \"pigeon\"\n", []string{"4:1: url: not a URL", `5:1: format = "pigeon"`}},
		{head + "url = \"https://x/y\"\ncommand = [\"/bin/true\"]\n", []string{"3:3: notify: only one of"}},
		{head + "url = \"https://x/y\"\nto = [\"a@b.example\"]\n", []string{"3:3: notify: only one of command, url, url_file and to may be given", `5:1: to: is for e-mail (add format = "email")`}},
		{head + "format = \"email\"\nto = [\"-oQ/tmp@x.example\"]\n", []string{`5:1: to: "-oQ/tmp@x.example" is not an address`}},
		{head + "format = \"email\"\nto = [\"a@b.example\\nBcc: x@y.example\"]\n", []string{`5:1: to: "a@b.example\nBcc: x@y.example" is not an address`}},
		{"[everybody]\nmemory = 8\n[notify]\nurl = \"https://x/y\"\n", []string{"2:1: memory = 8:", "3:2: notify: a section is needed (as [[notify]])"}},
	} {
		_, err := Parse("f", []byte(c.text))
		var got []string
		if err != nil {
			got = strings.Split(err.Error(), "\n")
		}
		expect.Must(t, len(got) == len(c.want), c.text, got)
		for i, want := range c.want {
			expect.True(t, strings.HasPrefix(strings.TrimPrefix(got[i], "f:"), want), got[i], want)
		}
	}
}

// A file with [[notify]] sections only is read, and a URL never reaches the file that everybody can read.
func TestNotifyApart(t *testing.T) {
	const text = "# head\n[[notify]]\nurl = \"https://example.com/secret\"\n\n[everybody]\nmemory = \"1g\"\n[[notify]] # more\nurl = \"https://example.com/secret2\"\nformat = \"slack\"\n[users]\nnotify = { memory = \"2g\" }\n"
	p, err := Parse("f", []byte(text))
	expect.Must(t, err == nil, err)
	expect.Equal(t, string(p.Text), "# head\n\n\n\n[everybody]\nmemory = \"1g\"\n\n\n\n[users]\nnotify = { memory = \"2g\" }\n")
	again, err := Parse("f", p.Text)
	expect.Must(t, err == nil && again.Users["notify"] != nil, err)
	expect.Equal(t, string(withoutNotify([]byte("notify = [\n { url = \"https://x/secret\" },\n]\n[everybody]\nmemory = \"1g\"\n"))), "\n\n\n[everybody]\nmemory = \"1g\"\n")
	expect.Equal(t, string(withoutNotify([]byte("[everybody]\nmemory = \"1g\"\n[[notify]]\nurl = \"https://x/secret\"\n"))), "[everybody]\nmemory = \"1g\"\n\n\n\n")

	file := filepath.Join(t.TempDir(), "config.toml")
	expect.Must(t, os.WriteFile(file, []byte("[[notify]]\ncommand = [\"/bin/true\"]\n"), 0o600) == nil)
	rules, _, err := ReadNotify(file)
	expect.Must(t, err == nil && len(rules) == 1, rules, err)
	expect.Equal(t, rules[0].Format, notify.JSON)
}
