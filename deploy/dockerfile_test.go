package deploy_test

import (
	"os"
	"path"
	"regexp"
	"strings"
	"testing"
)

// The image gets the package for its own processor, of those that make dist makes: apt
// refuses a package for another one.
func TestDockerfile(t *testing.T) {
	text, err := os.ReadFile("Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^COPY (\S+\.deb) `).FindSubmatch(text)
	if m == nil || !strings.Contains(string(text), "\nARG TARGETARCH\n") {
		t.Fatal("it does not copy a package for its own processor")
	}
	for _, arch := range []string{"amd64", "arm64"} {
		pattern := strings.ReplaceAll(string(m[1]), "${TARGETARCH}", arch)
		for _, of := range []string{"amd64", "arm64"} {
			name := "dist/ration_0.2.0~dev.123+g0123abc_" + of + ".deb"
			if got, err := path.Match(pattern, name); err != nil || got != (arch == of) {
				t.Errorf("for %s: %s is copied: %v, %v", arch, name, got, err)
			}
		}
	}
}
