package notify

import (
	"bytes"
	"encoding/json"
	"fmt"
	"mime"
	"mime/quotedprintable"
	"net/url"
	"strings"
	"time"

	"ration/internal/humanfmt"
)

func times(n int) string { return humanfmt.Plural(n, "more time", "more times") }

// host returns the host of a URL, which is no secret, as its path may be.
func host(address string) string {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" {
		return "a URL"
	}
	return u.Host
}

// body returns the text to send, in the rule's format.
func (r *Rule) body(n *Notification) ([]byte, error) {
	switch r.Format {
	case Slack:
		return json.Marshal(slackText(n))
	case Email:
		return r.mail(n)
	}
	text, err := json.Marshal(n)
	return append(text, '\n'), err
}

// slackMessage is the body of an incoming webhook.
type slackMessage struct {
	Text        string `json:"text"`
	Markdown    bool   `json:"mrkdwn"`
	UnfurlLinks bool   `json:"unfurl_links"`
	UnfurlMedia bool   `json:"unfurl_media"`
}

// noMention replaces the characters with which a text could mention somebody, or hide a link. Slack itself
// reads only &, < and >; programs that take the same format also read a name after @, which a space of no width
// ends.
var noMention = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", "@", "@\u200b")

func slackText(n *Notification) slackMessage {
	text := fmt.Sprintf("[%s] %s", n.Host, n.sentence())
	if n.Remedy != "" {
		text += "\nTo do: " + n.Remedy + "."
	}
	return slackMessage{Text: noMention.Replace(text)}
}

// maxSubject bounds the subject of an e-mail, in characters.
const maxSubject = 100

// mail returns an e-mail with its header. All text of others is encoded, so that it cannot add to the header.
func (r *Rule) mail(n *Notification) ([]byte, error) {
	subject := []rune(fmt.Sprintf("[ration] %s: %s", n.Host, n.sentence()))
	if len(subject) > maxSubject {
		subject = append(subject[:maxSubject-1], '…')
	}
	var out bytes.Buffer
	if r.From != "" {
		fmt.Fprintf(&out, "From: %s\n", r.From)
	}
	fmt.Fprintf(&out, "To: %s\nSubject: %s\nDate: %s\n", strings.Join(r.To, ", "), mime.QEncoding.Encode("utf-8", string(subject)), n.Time.Format(time.RFC1123Z))
	out.WriteString("Auto-Submitted: auto-generated\nMIME-Version: 1.0\nContent-Type: text/plain; charset=utf-8\nContent-Transfer-Encoding: quoted-printable\n\n")
	text := quotedprintable.NewWriter(&out)
	fmt.Fprintf(text, "%s\n\n", n.sentence())
	for _, line := range [][2]string{{"To do", n.Remedy}, {"Machine", n.Host}, {"User", n.User}, {"Job", n.Job}, {"Kind", n.Kind}, {"Time", n.Time.Format(time.RFC3339)}} {
		if line[1] != "" {
			fmt.Fprintf(text, "%s: %s\n", line[0], line[1])
		}
	}
	err := text.Close()
	return bytes.ReplaceAll(out.Bytes(), []byte("\r\n"), []byte("\n")), err
}
