package job

import (
	"fmt"
	"strings"
	"testing"

	"ration/check/expect"
)

func TestParseLabels(t *testing.T) {
	got, err := ParseLabels([]string{"project=vision team", "cost-centre=4711=b"})
	expect.OK(t, err)
	expect.Equal(t, fmt.Sprint(got), "map[cost-centre:4711=b project:vision team]")
	many := []string{}
	for i := range maxLabels + 1 {
		many = append(many, fmt.Sprintf("k%d=v", i))
	}
	for _, bad := range [][]string{{"project"}, {"=x"}, {"project="}, {"Project=x"}, {"a b=x"}, {"project=\x1b[2J"}, {"project=" + strings.Repeat("x", maxLabel+1)}, {"a=1", "a=2"}, many} {
		_, err := ParseLabels(bad)
		expect.True(t, err != nil, "accepted:", bad)
	}
}

// A job's user can write any labels: those that no launcher writes are dropped.
func TestLabelsOfFile(t *testing.T) {
	text := `{"command":["x"],"labels":{"project":"ok","BAD":"x","esc":"\u001b[2J","long":"` + strings.Repeat("x", 100) + `"`
	for i := range 100 {
		text += fmt.Sprintf(`,"z%03d":"v"`, i)
	}
	info, _ := parseInfo([]byte(text + "}}\n"))
	expect.Equal(t, len(info.Labels), maxLabels)
	expect.Equal(t, info.Labels[Project], "ok")
	expect.True(t, info.Labels["BAD"] == "" && info.Labels["esc"] == "" && info.Labels["long"] == "", info.Labels)
}
