// A provider of OpenID Connect with four people, who need no password.
//
//     node provider.mjs PORT CONSOLE CLAIMS
//
// CONSOLE is the console's address. CLAIMS says where a client finds names and groups: "userinfo",
// or "id_token". It prints "ready" when it listens.
import { Provider } from "oidc-provider";

const [port, consoleAddress, claimsIn] = process.argv.slice(2);
const issuer = `http://127.0.0.1:${port}`;
const groups = {
  anna: ["staff", "mq-viewers", "mq-admins"],
  otto: ["mq-operators"],
  vera: ["mq-viewers"],
  nora: ["staff"],
};
const scope = "openid profile groups";

const page = (title, body) =>
  `<!doctype html><html lang="en"><title>${title}</title><link rel="icon" href="data:,"><h1>${title}</h1>${body}</html>`;

const provider = new Provider(issuer, {
  clients: [
    {
      client_id: "kerolox",
      client_secret: "a secret: of the+client/%",
      redirect_uris: [`${consoleAddress}/login/oidc/callback`],
      post_logout_redirect_uris: [`${consoleAddress}/login`],
      grant_types: ["authorization_code"],
      response_types: ["code"],
    },
  ],
  scopes: scope.split(" "),
  claims: { openid: ["sub"], profile: ["preferred_username"], groups: ["groups"] },
  conformIdTokenClaims: claimsIn !== "id_token",
  cookies: { keys: ["of tests alone"] },
  pkce: { required: () => true },
  interactions: { url: (_ctx, interaction) => `/interaction/${interaction.uid}` },
  findAccount: (_ctx, id) =>
    id in groups
      ? { accountId: id, claims: () => ({ sub: id, preferred_username: `${id}.k`, groups: groups[id] }) }
      : undefined,
  async loadExistingGrant(ctx) {
    const { client, session } = ctx.oidc;
    const grant = new provider.Grant({ clientId: client.clientId, accountId: session.accountId });
    grant.addOIDCScope(scope);
    await grant.save();
    return grant;
  },
  features: {
    devInteractions: { enabled: false },
    rpInitiatedLogout: {
      enabled: true,
      logoutSource: (ctx, form) => {
        const button = '<button type="submit" form="op.logoutForm" name="logout" value="yes">Yes, log out</button>';
        ctx.body = page("Log out of the provider?", form + button);
      },
    },
  },
});

async function formOf(request) {
  let text = "";
  for await (const part of request) text += part;
  return new URLSearchParams(text);
}

provider.use(async (ctx, next) => {
  if (!ctx.path.startsWith("/interaction/")) return next();
  if (ctx.method === "GET") {
    const field = '<label>Name at the provider <input name="login" autofocus></label>';
    ctx.body = page("Who are you?", `<form method="post">${field}<button>Sign in</button></form>`);
    return undefined;
  }
  const accountId = (await formOf(ctx.req)).get("login");
  ctx.respond = false;
  return provider.interactionFinished(ctx.req, ctx.res, { login: { accountId } });
});

provider.listen(Number(port), "127.0.0.1", () => console.log("ready"));
