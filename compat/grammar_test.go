package compat

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// A rule is the syntax of a command, made of text:
//
//	WORD     itself, in any case
//	name     an argument of that kind, see (*generator).argument
//	[ … ]    sometimes there
//	( … )    a group
//	{ … }    its parts in any order
//	a | b    one of them, inside any of the brackets
//	x+       one to four times; x* may be absent; x++ also hundreds of times
type rule struct {
	form  ruleForm
	text  string
	parts []rule
}

type ruleForm byte

const (
	ruleWord ruleForm = iota
	ruleArgument
	ruleSequence
	ruleChoice
	ruleShuffle
	ruleMaybe
	ruleMany     // x+
	ruleAny      // x*
	ruleHundreds // x++
)

func parseRules(text string) ([]rule, error) {
	var rules []rule
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		p := ruleParser{tokens: tokenize(line)}
		r := p.choice()
		if len(p.tokens) > 0 {
			return nil, fmt.Errorf("%s: %q is left over", line, p.tokens)
		}
		rules = append(rules, r)
	}
	return rules, nil
}

func tokenize(line string) []string {
	for _, sign := range []string{"[", "]", "(", ")", "{", "}", "|"} {
		line = strings.ReplaceAll(line, sign, " "+sign+" ")
	}
	for _, bracket := range []string{"]", ")", "}"} {
		line = strings.ReplaceAll(line, bracket+" +", bracket+"+")
		line = strings.ReplaceAll(line, bracket+" *", bracket+"*")
	}
	return strings.Fields(line)
}

type ruleParser struct{ tokens []string }

func (p *ruleParser) choice() rule {
	choices := []rule{p.sequence()}
	for len(p.tokens) > 0 && p.tokens[0] == "|" {
		p.tokens = p.tokens[1:]
		choices = append(choices, p.sequence())
	}
	if len(choices) == 1 {
		return choices[0]
	}
	return rule{form: ruleChoice, parts: choices}
}

func (p *ruleParser) sequence() rule {
	seq := rule{form: ruleSequence}
	for len(p.tokens) > 0 {
		t := p.tokens[0]
		if t == "|" || strings.ContainsAny(t[:1], "])}") {
			break
		}
		p.tokens = p.tokens[1:]
		var r rule
		closing := ""
		switch t {
		case "[", "(", "{":
			r = p.choice()
			switch t {
			case "[":
				r = rule{form: ruleMaybe, parts: []rule{r}}
			case "{":
				r.form = ruleShuffle
			}
			if len(p.tokens) > 0 {
				closing, p.tokens = p.tokens[0], p.tokens[1:]
			}
		default:
			closing = t
			word := strings.TrimRight(t, "+*")
			r = rule{form: ruleArgument, text: word}
			if word == strings.ToUpper(word) {
				r.form = ruleWord
			}
		}
		switch {
		case strings.HasSuffix(closing, "++"):
			r = rule{form: ruleHundreds, parts: []rule{r}}
		case strings.HasSuffix(closing, "+"):
			r = rule{form: ruleMany, parts: []rule{r}}
		case strings.HasSuffix(closing, "*"):
			r = rule{form: ruleAny, parts: []rule{r}}
		}
		seq.parts = append(seq.parts, r)
	}
	return seq
}

// say appends to args what the rule stands for.
func (g *generator) say(r rule, args []string) []string {
	times := func(n int) {
		for range n {
			args = g.say(r.parts[0], args)
		}
	}
	switch r.form {
	case ruleWord:
		return append(args, g.anyCase(r.text))
	case ruleArgument:
		return g.argument(r.text, args)
	case ruleSequence:
		for _, p := range r.parts {
			args = g.say(p, args)
		}
	case ruleChoice:
		return g.say(r.parts[g.rnd.IntN(len(r.parts))], args)
	case ruleShuffle:
		for _, i := range g.rnd.Perm(len(r.parts)) {
			args = g.say(r.parts[i], args)
		}
	case ruleMaybe:
		if g.chance(0.35) {
			times(1)
		}
	case ruleMany:
		times(1 + g.rnd.IntN(4))
	case ruleAny:
		times(g.rnd.IntN(4))
	case ruleHundreds:
		if times(1 + g.rnd.IntN(4)); g.chance(0.02) {
			times(100 + g.rnd.IntN(500))
		}
	}
	return args
}

func (g *generator) anyCase(word string) string {
	switch {
	case g.chance(0.1):
		return strings.ToLower(word)
	case g.chance(0.02):
		b := []byte(word)
		for i := range b {
			if g.chance(0.5) {
				b[i] ^= 0x20 & (b[i] >> 1) // letters only
			}
		}
		return string(b)
	}
	return word
}

// ends reports whether a spoilt command might give a key a time to live that is
// over before both servers have looked: who is asked first is chance.
func ends(args []string) bool {
	const most = 60_000 // of whatever unit
	switch strings.ToLower(args[0]) {
	case "set", "getex", "setex", "psetex", "expire", "pexpire", "restore":
	default:
		return false
	}
	return slices.ContainsFunc(args[1:], func(a string) bool {
		n, err := strconv.Atoi(a)
		return err == nil && n > 0 && n < most
	})
}

// mutate spoils a command: arguments that lack, are too many, out of place, or
// what nobody would send.
func (g *generator) mutate(args []string) []string {
	args = slices.Clone(args)
	for ok := true; ok; ok = g.chance(0.2) {
		at := 1 + g.rnd.IntN(len(args)) // may be behind the last
		if at == len(args) {
			args = append(args, g.junk())
			continue
		}
		switch g.rnd.IntN(6) {
		case 0:
			args = slices.Delete(args, at, at+1)
		case 1:
			args = slices.Insert(args, at, args[at])
		case 2:
			other := 1 + g.rnd.IntN(len(args)-1)
			args[at], args[other] = args[other], args[at]
		case 3:
			args = args[:at]
		default:
			args[at] = g.junk()
		}
	}
	return args
}

func (g *generator) junk() string {
	switch g.rnd.IntN(5) {
	case 0:
		return pick(g, oddNumbers)
	case 1:
		return pick(g, optionWords)
	case 2:
		return g.key(anyType)
	default:
		return g.value()
	}
}

func TestRulesAreParsed(t *testing.T) {
	for _, table := range commandTables() {
		if _, err := parseRules(table.rules); err != nil {
			t.Error(err)
		}
	}
	g := newGenerator(t, 1)
	rules, err := parseRules("A [B] (C|D)+ {E F}")
	if err != nil || len(rules) != 1 {
		t.Fatal(rules, err)
	}
	seen := map[string]bool{}
	for range 3000 {
		seen[strings.ToUpper(strings.Join(g.say(rules[0], nil), ""))] = true
	}
	for _, want := range []string{"ACEF", "ABDEF", "ACFE", "ACDCDFE", "ABCCCCEF"} {
		if !seen[want] {
			t.Errorf("%s is never said", want)
		}
	}
	for said := range seen {
		if !strings.HasSuffix(said, "EF") && !strings.HasSuffix(said, "FE") || said[0] != 'A' || !strings.ContainsAny(said, "CD") {
			t.Errorf("%s breaks the rule", said)
		}
	}
}
