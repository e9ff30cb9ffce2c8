package deploy_test

import (
	"os"
	"path"
	"regexp"
	"strings"
	"testing"

	"ration/check/expect"
)

// The image gets the package for its own processor, of those that make dist makes: apt
// refuses a package for another one.
func TestDockerfile(t *testing.T) {
	text, err := os.ReadFile("Dockerfile")
	expect.OK(t, err)
	m := regexp.MustCompile(`(?m)^COPY (\S+\.deb) `).FindSubmatch(text)
	expect.Must(t, m != nil && strings.Contains(string(text), "\nARG TARGETARCH\n"), "it does not copy a package for its own processor")
	for _, arch := range []string{"amd64", "arm64"} {
		pattern := strings.ReplaceAll(string(m[1]), "${TARGETARCH}", arch)
		for _, of := range []string{"amd64", "arm64"} {
			name := "dist/ration_0.2.0~dev.123+g0123abc_" + of + ".deb"
			got, err := path.Match(pattern, name)
			expect.True(t, err == nil && got == (arch == of), "for", arch, name, "is copied", got, err)
		}
	}
}
