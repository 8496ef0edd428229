// Evaluates the expressions in the attributes of the admin's theme (django-unfold, built on Alpine) without compiling
// them to JavaScript, so that the Content-Security-Policy needs no 'unsafe-eval'. It knows the part of the language
// that the theme uses: literals, names of the component, members, calls, functions of one value (`value => ...`),
// operators, assignments, `if` and `;`. Expressions reach only the names of their component and those in GLOBALS;
// members in FORBIDDEN are refused. A test parses all expressions of the theme.
(() => {
  'use strict'

  const GLOBALS = {
    getCurrentTab: () => getCurrentTab,
    localStorage: () => localStorage,
    moveRecords: () => moveRecords, // a constant of app.js, which is no property of window
    searchCommand: () => searchCommand,
    searchDropdown: () => searchDropdown,
    searchForm: () => searchForm,
    sortRecords: () => sortRecords,
    theme: () => theme,
    window: () => ({ location: { pathname: location.pathname, search: location.search } })
  }
  const FORBIDDEN = new Set([
    '__proto__', 'constructor', 'prototype', 'ownerDocument', 'defaultView', 'view', 'innerHTML', 'outerHTML', 'insertAdjacentHTML',
    'srcdoc', 'eval', 'Function', 'contentWindow', 'contentDocument', 'setHTMLUnsafe', '__lookupGetter__', '__defineGetter__',
    '__lookupSetter__', '__defineSetter__'
  ])
  // Names that an expression sets although no component has them: the theme's `activeTab`.
  const shared = Object.create(null)
  const CONSTANTS = { true: true, false: false, null: null, undefined: undefined }
  const TOKEN = /\s*(?:(\d+(?:\.\d+)?)|([A-Za-z_$][\w$]*)|'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)"|(===|!==|=>|==|!=|<=|>=|&&|\|\||[-+!<>=?:.,;(){}[\]]))/y
  // Binary operators from the loosest to the tightest.
  const LEVELS = [['||'], ['&&'], ['===', '!==', '==', '!='], ['<', '>', '<=', '>='], ['+', '-']]
  const BINARY = {
    '===': (a, b) => a === b, '!==': (a, b) => a !== b,
    '==': (a, b) => a == b, '!=': (a, b) => a != b, // eslint-disable-line eqeqeq
    '<': (a, b) => a < b, '>': (a, b) => a > b, '<=': (a, b) => a <= b, '>=': (a, b) => a >= b,
    '+': (a, b) => a + b, '-': (a, b) => a - b
  }

  function tokenize (source) {
    const tokens = []
    TOKEN.lastIndex = 0
    while (TOKEN.lastIndex < source.trimEnd().length) {
      const match = TOKEN.exec(source)
      if (!match) throw new SyntaxError(`Not supported: ${source}`)
      const [, number, name, single, double, sign] = match
      const text = single ?? double
      if (number !== undefined) tokens.push({ kind: 'value', value: Number(number) })
      else if (name !== undefined) tokens.push({ kind: 'name', value: name })
      else if (text !== undefined) tokens.push({ kind: 'value', value: text.replace(/\\(.)/g, '$1') })
      else tokens.push({ kind: 'sign', value: sign })
    }
    return tokens
  }

  // A parser of one source. Each method returns a function of the scope; those that can be assigned to have `assign`.
  class Parser {
    constructor (source) {
      this.source = source
      this.tokens = tokenize(source)
      this.at = 0
    }

    next () {
      return this.tokens[this.at++]
    }

    is (value, kind = 'sign') {
      const token = this.tokens[this.at]
      return token !== undefined && token.kind === kind && token.value === value
    }

    take (value, kind) {
      if (!this.is(value, kind)) return false
      this.at++
      return true
    }

    expect (value) {
      if (!this.take(value)) throw new SyntaxError(`Expected ${value}: ${this.source}`)
    }

    statements (end) {
      const parts = []
      while (this.at < this.tokens.length && !(end && this.is(end))) {
        if (!this.take(';')) parts.push(this.statement())
      }
      if (end) this.expect(end)
      return scope => parts.reduce((last, part) => part(scope), undefined)
    }

    statement () {
      if (!this.take('if', 'name')) return this.expression()
      this.expect('(')
      const condition = this.expression()
      this.expect(')')
      const yes = this.block()
      const no = this.take('else', 'name') ? this.block() : () => undefined
      return scope => condition(scope) ? yes(scope) : no(scope)
    }

    block () {
      return this.take('{') ? this.statements('}') : this.statement()
    }

    expression () {
      const [first, second] = this.tokens.slice(this.at, this.at + 2)
      if (first?.kind === 'name' && second?.kind === 'sign' && second.value === '=>') return this.arrow()
      const target = this.conditional()
      if (!this.take('=')) return target
      if (!target.assign) throw new SyntaxError(`Cannot be assigned: ${this.source}`)
      const value = this.expression()
      return scope => target.assign(scope, value(scope))
    }

    arrow () {
      const name = this.name()
      this.expect('=>')
      const body = this.expression()
      return scope => value => body(window.Alpine.mergeProxies([{ [name]: value }, scope]))
    }

    conditional () {
      const condition = this.binary(0)
      if (!this.take('?')) return condition
      const yes = this.expression()
      this.expect(':')
      const no = this.expression()
      return scope => condition(scope) ? yes(scope) : no(scope)
    }

    binary (level) {
      if (level === LEVELS.length) return this.unary()
      let left = this.binary(level + 1)
      for (;;) {
        const sign = LEVELS[level].find(one => this.take(one))
        if (!sign) return left
        const [first, second] = [left, this.binary(level + 1)]
        if (sign === '||') left = scope => first(scope) || second(scope)
        else if (sign === '&&') left = scope => first(scope) && second(scope)
        else left = scope => BINARY[sign](first(scope), second(scope))
      }
    }

    unary () {
      if (this.take('!')) {
        const value = this.unary()
        return scope => !value(scope)
      }
      if (this.take('-')) {
        const value = this.unary()
        return scope => -value(scope)
      }
      return this.postfix()
    }

    postfix () {
      let value = this.primary()
      for (;;) {
        if (this.take('.')) value = member(value, constant(this.name()))
        else if (this.take('[')) {
          value = member(value, this.expression())
          this.expect(']')
        } else if (this.take('(')) value = call(value, this.list(')'))
        else return value
      }
    }

    primary () {
      const token = this.next()
      if (token === undefined) throw new SyntaxError(`Incomplete: ${this.source}`)
      if (token.kind === 'value') return constant(token.value)
      if (token.kind === 'name') return Object.hasOwn(CONSTANTS, token.value) ? constant(CONSTANTS[token.value]) : name(token.value)
      if (token.value === '(') {
        const value = this.expression()
        this.expect(')')
        return value
      }
      if (token.value === '[') {
        const items = this.list(']')
        return scope => items.map(item => item(scope))
      }
      if (token.value === '{') return this.object()
      throw new SyntaxError(`Not supported: ${this.source}`)
    }

    list (end) {
      const items = []
      while (!this.take(end)) {
        items.push(this.expression())
        if (!this.is(end)) this.expect(',')
      }
      return items
    }

    object () {
      const members = []
      while (!this.take('}')) {
        const key = this.next()
        if (key === undefined || key.kind === 'sign') throw new SyntaxError(`Not supported: ${this.source}`)
        this.expect(':')
        members.push([String(key.value), this.expression()])
        if (!this.is('}')) this.expect(',')
      }
      return scope => Object.fromEntries(members.map(([key, value]) => [key, value(scope)]))
    }

    name () {
      const token = this.next()
      if (token === undefined || token.kind !== 'name') throw new SyntaxError(`Expected a name: ${this.source}`)
      return token.value
    }
  }

  const constant = value => () => value

  function checked (key) {
    const text = String(key) // once: an object may answer differently each time
    if (FORBIDDEN.has(text)) throw new TypeError(`Not allowed: ${text}`)
    return text
  }

  function name (key) {
    checked(key)
    const read = scope => {
      if (key in scope) return scope[key]
      if (key in shared) return shared[key]
      if (Object.hasOwn(GLOBALS, key)) return GLOBALS[key]()
      throw new ReferenceError(`${key} is not defined`)
    }
    read.assign = (scope, value) => ((key in scope ? scope : shared)[key] = value)
    read.target = scope => [scope, read(scope)]
    return read
  }

  function member (owner, key) {
    const read = scope => owner(scope)[checked(key(scope))]
    read.assign = (scope, value) => (owner(scope)[checked(key(scope))] = value)
    read.target = scope => {
      const self = owner(scope)
      return [self, self[checked(key(scope))]]
    }
    return read
  }

  function call (callee, values) {
    return scope => {
      const [self, method] = callee.target ? callee.target(scope) : [undefined, callee(scope)]
      return method.apply(self, values.map(value => value(scope)))
    }
  }

  const parsed = new Map()

  function parse (source) {
    if (!parsed.has(source)) parsed.set(source, new Parser(source).statements())
    return parsed.get(source)
  }

  function report (error, element, expression) {
    console.warn(`Alpine Expression Error: ${error.message}\n\nExpression: "${expression}"\n\n`, element)
    setTimeout(() => { throw error }, 0)
  }

  // Alpine's evaluator: returns a function that passes the value of the expression to `receive`.
  function evaluator (element, expression) {
    const stack = window.Alpine.closestDataStack(element)
    return (receive = () => {}, { scope = {}, params = [] } = {}) => {
      try {
        const names = window.Alpine.mergeProxies([scope, ...stack])
        let value = typeof expression === 'function' ? expression : parse(expression)(names)
        if (typeof value === 'function') value = value.apply(names, params)
        if (value instanceof Promise) value.then(receive, error => report(error, element, expression))
        else receive(value)
      } catch (error) {
        report(error, element, expression)
      }
    }
  }

  window.parseAdminExpression = parse // for the test
  document.addEventListener('alpine:init', () => window.Alpine.setEvaluator(evaluator))
})()
