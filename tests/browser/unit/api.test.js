import { buildQuery, encodeSegment, Problem, trackRequests } from "/web/api.js";
import { each, equal } from "./check.js";

export default {
  "a query omits empty values but keeps zero": () => {
    each([
      [{}, ""], [{ a: null, b: undefined, c: "", d: false }, ""], [{ a: 0, b: true }, "?a=0&b=true"],
      [{ kind: [] }, ""], [{ kind: ["a", "", "b"] }, "?kind=a&kind=b"],
      [{ q: "a&b=c d|é/" }, "?q=a%26b%3Dc+d%7C%C3%A9%2F"],
    ], buildQuery);
  },

  "a path segment is encoded as one segment": () => {
    each([["chat:a/b|c d", "chat%3Aa%2Fb%7Cc%20d"], ["..?#%", "..%3F%23%25"], ["é😀", "%C3%A9%F0%9F%98%80"]],
      encodeSegment);
  },

  "an older response is ignored after a newer one": () => {
    const ask = trackRequests();
    const [first, second, third] = [ask(), ask(), ask()];
    equal([second.accept(), first.accept(), third.accept(), second.accept()], [true, false, true, false]);
    equal([first.isLatest(), third.isLatest()], [false, true]);
  },

  "responses about one subject do not block those about another": () => {
    const ask = trackRequests();
    const [first, second] = [ask(), ask()];
    equal([second.accept("a"), first.accept("b"), first.accept("a")], [true, true, false]);
  },

  "separate request trackers are independent": () => {
    const [one, other] = [trackRequests(), trackRequests()];
    const [old, fresh] = [one(), other()];
    equal([fresh.accept(), old.accept(), old.isLatest()], [true, true, true]);
  },

  "a problem has a message with all its parts": () => {
    each([
      [{ detail: "no such task", code: "not_found", field: "id" }, ["no such task", "not_found", "id"]],
      [{ title: "Bad", errors: [{ message: "a" }, { message: "b" }] }, ["Bad: a: b", "error", null]],
      [{}, ["the server answered 502", "error", null]],
    ], (body) => {
      const { message, code, field } = new Problem(502, body);
      return [message, code, field];
    });
  },
};
