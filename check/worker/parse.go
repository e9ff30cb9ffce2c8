package main

import (
	"strconv"
	"strings"

	"ration/internal/abi"
)

// parser takes the words of an order one by one. err is set if one is missing or
// wrong.
type parser struct {
	arg []string
	err error
}

func (p *parser) word() string {
	if len(p.arg) == 0 {
		p.err = errUsage
		return ""
	}
	word := p.arg[0]
	p.arg = p.arg[1:]
	return word
}

func (p *parser) number() int {
	n, err := strconv.Atoi(p.word())
	if err != nil {
		p.err = errUsage
	}
	return n
}

func (p *parser) kind() abi.Kind {
	word := p.word()
	for k := range abi.Kinds {
		if k.String() == word {
			return k
		}
	}
	p.err = errUsage
	return 0
}

func (p *parser) devices() (out []int) {
	for word := range strings.SplitSeq(p.word(), ",") {
		n, err := strconv.Atoi(word)
		if err != nil || n < 0 || n >= abi.Devices {
			p.err = errUsage
			return nil
		}
		out = append(out, n)
	}
	return out
}
