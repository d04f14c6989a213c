// Measures functions: `node sizes.mjs FILE ...` prints JSON, a list of [file, line, name, lines] for every function,
// method and arrow function. A function's lines are those from its first to its last character.

import fs from "node:fs";

import { parse } from "acorn";

function functionsOf(file) {
  const program = parse(fs.readFileSync(file, "utf8"), { ecmaVersion: "latest", sourceType: "module", locations: true });
  return [...nodesOf(program, "")]
    .filter(([node]) => /Function/.test(node.type))
    .map(([{ loc }, name]) => [file, loc.start.line, name, loc.end.line - loc.start.line + 1]);
}

/** A node and all below it, each with a name: its own, or that of what it is assigned to. */
function* nodesOf(node, given) {
  const name = node.id?.name ?? node.key?.name ?? node.left?.name ?? given;
  yield [node, name];
  for (const value of Object.values(node).flat()) {
    if (typeof value?.type === "string") yield* nodesOf(value, node.type.endsWith("Statement") ? "" : name);
  }
}

console.log(JSON.stringify(process.argv.slice(2).flatMap(functionsOf)));
