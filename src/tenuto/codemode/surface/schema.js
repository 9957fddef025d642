// JSON Schema 2020-12, as far as `check_schema` in schemas.py lets it in: what a composed tool takes is
// checked here, beside the code that calls it. Values are plain copies, schemas came as JSON.
(kit) => {
  'use strict';
  const DEPTH_MAX = 200;
  const FAULTS_MAX = 5;
  const exec = RegExp.prototype.exec;
  const { abs, round } = Math;
  const decodeURIComponent = globalThis.decodeURIComponent;
  const isNumber = (value) => typeof value === 'number' || typeof value === 'bigint';
  const own = (object, key) => kit.descriptor(object, key)?.value;
  const has = (object, key) => kit.descriptor(object, key) !== undefined;

  const typeOf = (value) => {
    if (value === null || value === undefined) return 'null';
    if (isNumber(value)) return 'number';
    if (typeof value !== 'object') return typeof value;
    const kind = kit.classOf(value);
    if (kind === 'Array') return 'array';
    return kind === '' ? 'object' : 'string'; // a date, or bytes: as text they would travel
  };
  const isOf = (value, type) => {
    if (type === 'integer') return typeof value === 'bigint' || kit.isInteger(value);
    return typeOf(value) === type;
  };

  const same = (one, other) => {
    if (isNumber(one) && isNumber(other)) return one == other; // eslint-disable-line eqeqeq
    const type = typeOf(one);
    if (type !== typeOf(other)) return false;
    if (type === 'array') {
      if (one.length !== other.length) return false;
      for (let at = 0; at < one.length; at++) if (!same(one[at], other[at])) return false;
      return true;
    }
    if (type !== 'object') return type === 'null' || one === other;
    const keys = kit.ownKeys(one);
    if (keys.length !== kit.ownKeys(other).length) return false;
    for (let at = 0; at < keys.length; at++) {
      if (!has(other, keys[at]) || !same(own(one, keys[at]), own(other, keys[at]))) return false;
    }
    return true;
  };

  const shown = (value) => {
    const text = typeof value === 'bigint' ? kit.String(value) : (kit.stringify(value) ?? 'null');
    return text.length > 80 ? `${kit.slice(text, 0, 79)}…` : text;
  };
  const points = (text) => {
    let count = 0;
    for (let at = 0; at < text.length; at++) {
      const code = kit.charCodeAt(text, at);
      if (code < 0xdc00 || code > 0xdfff) count++;
    }
    return count;
  };
  const matches = (pattern, text) => {
    let expression;
    try {
      expression = kit.construct(kit.RegExp, [pattern, 'u']);
    } catch {
      expression = kit.construct(kit.RegExp, [pattern]);
    }
    return kit.apply(exec, expression, [text]) !== null;
  };
  const below = (path, key) => (path === '' ? kit.String(key) : `${path}.${kit.String(key)}`);

  const resolve = (root, reference) => {
    let found = root;
    const parts = kit.split(kit.slice(reference, 1), '/');
    for (let at = 1; at < parts.length; at++) {
      const name = kit.replaceAll(kit.replaceAll(decodeURIComponent(parts[at]), '~1', '/'), '~0', '~');
      found = typeof found === 'object' && found !== null ? own(found, name) : undefined;
    }
    return found === undefined ? true : found;
  };

  /** Hold one value against one schema; `say` takes what is wrong. */
  const check = (root, schema, value, path, depth, say) => {
    if (depth > DEPTH_MAX) throw new kit.RangeError('the value and its schema are nested too deep to be checked');
    if (schema === true) return;
    if (schema === false) {
      say(path, `${shown(value)} is not allowed here`);
      return;
    }
    const deeper = (inner, item, where) => check(root, inner, item, where, depth + 1, say);
    const fits = (inner, item) => {
      let well = true;
      check(root, inner, item, path, depth + 1, () => (well = false));
      return well;
    };
    const get = (name) => own(schema, name);
    const reference = get('$ref');
    if (reference !== undefined) deeper(resolve(root, reference), value, path);
    general(get, value, path, say);
    combined(get, value, path, say, deeper, fits);
    const type = typeOf(value);
    if (type === 'number') numeric(get, value, path, say);
    else if (type === 'string') textual(get, value, path, say);
    else if (type === 'array') listed(get, value, path, say, deeper, fits);
    else if (type === 'object') named(get, value, path, say, deeper, fits);
  };

  const general = (get, value, path, say) => {
    const type = get('type');
    if (typeof type === 'string' && !isOf(value, type)) say(path, `${shown(value)} is not of type "${type}"`);
    if (kit.isArray(type)) {
      let well = false;
      for (let at = 0; at < type.length; at++) if (isOf(value, type[at])) well = true;
      if (!well) say(path, `${shown(value)} is not of types "${kit.join(type, '", "')}"`);
    }
    const choices = get('enum');
    if (choices !== undefined) {
      let well = false;
      for (let at = 0; at < choices.length; at++) if (same(value, choices[at])) well = true;
      if (!well) say(path, `${shown(value)} is not one of ${shown(choices)}`);
    }
    const only = get('const');
    if (only !== undefined && !same(value, only)) say(path, `${shown(only)} was expected`);
  };

  const combined = (get, value, path, say, deeper, fits) => {
    const count = (list) => {
      let number = 0;
      for (let at = 0; at < list.length; at++) if (fits(list[at], value)) number++;
      return number;
    };
    const all = get('allOf') ?? [];
    for (let at = 0; at < all.length; at++) deeper(all[at], value, path);
    const any = get('anyOf');
    if (any !== undefined && count(any) === 0) say(path, `${shown(value)} fits none of the alternatives`);
    const one = get('oneOf');
    if (one !== undefined && count(one) !== 1) say(path, `${shown(value)} does not fit exactly one of the alternatives`);
    const not = get('not');
    if (not !== undefined && fits(not, value)) say(path, `${shown(value)} is not allowed here`);
    const condition = get('if');
    if (condition !== undefined) {
      const then = get(fits(condition, value) ? 'then' : 'else');
      if (then !== undefined) deeper(then, value, path);
    }
  };

  const numeric = (get, value, path, say) => {
    const bound = (name, well, words) => {
      const limit = get(name);
      if (limit !== undefined && !well(limit)) say(path, `${shown(value)} is ${words} ${limit}`);
    };
    bound('minimum', (limit) => value >= limit, 'less than the minimum of');
    bound('maximum', (limit) => value <= limit, 'greater than the maximum of');
    bound('exclusiveMinimum', (limit) => value > limit, 'not greater than');
    bound('exclusiveMaximum', (limit) => value < limit, 'not less than');
    bound(
      'multipleOf',
      (limit) => {
        const parts = kit.Number(value) / limit;
        return abs(parts - round(parts)) < 1e-9;
      },
      'not a multiple of',
    );
  };

  const textual = (get, value, path, say) => {
    const text = typeof value === 'string' ? value : kit.String(value);
    const least = get('minLength');
    const most = get('maxLength');
    if (least !== undefined && points(text) < least) say(path, `${shown(value)} is shorter than ${least} characters`);
    if (most !== undefined && points(text) > most) say(path, `${shown(value)} is longer than ${most} characters`);
    const pattern = get('pattern');
    if (pattern !== undefined && !matches(pattern, text)) say(path, `${shown(value)} does not match "${pattern}"`);
  };

  const listed = (get, value, path, say, deeper, fits) => {
    const { length } = value;
    if (length < (get('minItems') ?? 0)) say(path, `it has less than ${get('minItems')} items`);
    if (length > (get('maxItems') ?? Infinity)) say(path, `it has more than ${get('maxItems')} items`);
    const first = get('prefixItems') ?? [];
    const rest = get('items');
    for (let at = 0; at < length; at++) {
      if (at < first.length) deeper(first[at], value[at], below(path, at));
      else if (rest !== undefined) deeper(rest, value[at], below(path, at));
    }
    if (get('uniqueItems') === true) {
      for (let at = 1; at < length; at++) {
        for (let before = 0; before < at; before++) {
          if (same(value[at], value[before])) {
            say(path, `${shown(value)} has the same item twice`);
            return;
          }
        }
      }
    }
    const contained = get('contains');
    if (contained === undefined) return;
    let count = 0;
    for (let at = 0; at < length; at++) if (fits(contained, value[at])) count++;
    if (count < (get('minContains') ?? 1)) say(path, `${shown(value)} holds too few of what it must contain`);
    if (count > (get('maxContains') ?? Infinity)) say(path, `${shown(value)} holds too many of what it must contain`);
  };

  const named = (get, value, path, say, deeper, fits) => {
    const keys = kit.ownKeys(value);
    const needed = (names, why) => {
      for (let at = 0; at < names.length; at++) {
        if (!has(value, names[at])) say(path, `${kit.stringify(names[at])} is a required property${why}`);
      }
    };
    needed(get('required') ?? [], '');
    if (keys.length < (get('minProperties') ?? 0)) say(path, `it has less than ${get('minProperties')} properties`);
    if (keys.length > (get('maxProperties') ?? Infinity)) say(path, `it has more than ${get('maxProperties')} properties`);
    const properties = get('properties') ?? {};
    const patterns = get('patternProperties') ?? {};
    const others = get('additionalProperties');
    const rule = get('propertyNames');
    const dependents = get('dependentRequired') ?? {};
    const dependentSchemas = get('dependentSchemas') ?? {};
    const patternNames = kit.ownKeys(patterns);
    for (let at = 0; at < keys.length; at++) {
      const key = keys[at];
      const item = own(value, key);
      const where = below(path, key);
      let known = has(properties, key);
      if (known) deeper(own(properties, key), item, where);
      for (let number = 0; number < patternNames.length; number++) {
        if (!matches(patternNames[number], key)) continue;
        known = true;
        deeper(own(patterns, patternNames[number]), item, where);
      }
      if (!known && others === false) say(path, `${kit.stringify(key)} was unexpected`);
      else if (!known && others !== undefined) deeper(others, item, where);
      if (rule !== undefined && !fits(rule, key)) say(path, `${kit.stringify(key)} is not allowed as a name`);
      if (has(dependents, key)) needed(own(dependents, key), ` with ${kit.stringify(key)}`);
      if (has(dependentSchemas, key)) deeper(own(dependentSchemas, key), value, path);
    }
  };

  /** Return what is wrong with a value, a sentence each; an empty list if it fits. */
  kit.check = (schema, value) => {
    const faults = [];
    check(schema, schema, value, '', 0, (path, text) => {
      if (faults.length < FAULTS_MAX) kit.push(faults, path === '' ? text : `${path}: ${text}`);
    });
    return faults;
  };
};
